"""What covaries with what: covariance functions, and their algebra."""

from mercer.kernels import nngp
from mercer.kernels.additive import Additive
from mercer.kernels.base import Kernel, OnDimensions, Product, Scaled, Sum
from mercer.kernels.change_points import ChangePoints
from mercer.kernels.convolution_process import ConvolutionProcess
from mercer.kernels.coregionalisation import (
    Coregionalisation,
    IntrinsicCoregionalisation,
    LinearCoregionalisation,
    SharedAndOwn,
)
from mercer.kernels.dot_product import Linear, Polynomial
from mercer.kernels.feature_map import FeatureMap
from mercer.kernels.geometric import Geometric
from mercer.kernels.homogeneous import ArcCosine, Homogeneous
from mercer.kernels.images import Convolutional, ImageToImage
from mercer.kernels.maps import Draw, Features, Map
from mercer.kernels.multioutput import (
    Independent,
    LatentKernel,
    MultioutputKernel,
    OutputIndexed,
    SeparateIndependent,
    SharedIndependent,
)
from mercer.kernels.periodic import Cosine, Periodic, SpectralMixture
from mercer.kernels.static import Constant, White
from mercer.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic, Stationary
from mercer.kernels.variational import (
    CholeskySVGP,
    DiagonalSVGP,
    FixedSparsePosterior,
    KernelisedSVGP,
    SparsePosterior,
    Tempered,
)
from mercer.kernels.zonal import (
    HeatKernel,
    IntrinsicMatern,
    PoissonKernel,
    PolynomialDecay,
    SphericalArcCosine,
    SphericalMatern12,
    SphericalMatern32,
    SphericalMatern52,
    SphericalNTK,
    SphericalRBF,
    Zonal,
)

__all__ = [
    "Kernel",
    "Features",
    "Draw",
    "Map",
    "Sum",
    "Product",
    "Scaled",
    "OnDimensions",
    "Stationary",
    "RBF",
    "Matern12",
    "Matern32",
    "Matern52",
    "RationalQuadratic",
    "Additive",
    "Periodic",
    "Cosine",
    "SpectralMixture",
    "Linear",
    "Polynomial",
    "ArcCosine",
    "Homogeneous",
    "Zonal",
    "SphericalRBF",
    "SphericalMatern12",
    "SphericalMatern32",
    "SphericalMatern52",
    "IntrinsicMatern",
    "HeatKernel",
    "SphericalArcCosine",
    "SphericalNTK",
    "PoissonKernel",
    "PolynomialDecay",
    "Constant",
    "White",
    "ChangePoints",
    "MultioutputKernel",
    "LatentKernel",
    "Independent",
    "SharedIndependent",
    "SeparateIndependent",
    "Coregionalisation",
    "LinearCoregionalisation",
    "SharedAndOwn",
    "IntrinsicCoregionalisation",
    "ConvolutionProcess",
    "OutputIndexed",
    "Convolutional",
    "ImageToImage",
    "FeatureMap",
    "Geometric",
    "CholeskySVGP",
    "DiagonalSVGP",
    "KernelisedSVGP",
    "SparsePosterior",
    "FixedSparsePosterior",
    "Tempered",
    "nngp",
]
