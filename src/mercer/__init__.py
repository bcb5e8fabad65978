"""mercer: scalable Gaussian processes in JAX."""
