"""Files that are not what they should be: each is refused with one class of error and one sentence, at once, and runs nothing."""

import hashlib
import io as streams
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import time
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save as serialise

import mercer as mc
from mercer import io

ZEROS = "0" * 64
SECONDS = 5.0  # far more than any of these needs


def model():
    mean = mc.means.Network(eqx.nn.MLP(2, 1, 3, 1, activation=jnp.tanh, key=jax.random.key(0)))
    points = np.random.default_rng(0).normal(size=(4, 2))
    q = mc.Sparse(mc.GP(mc.kernels.RBF([0.5, 2.0]) + mc.kernels.Polynomial(2), mean), mc.inducing.Points(points))
    return mc.Model(q, mc.likelihoods.RobustMax(3))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The bytes of a file as it should be."""
    path = tmp_path_factory.mktemp("good") / "file"
    io.save(path, model())
    return path.read_bytes()


@pytest.fixture
def refused(tmp_path):
    """Asserts that bytes are refused as they should be, and gives the message."""

    def refused(content):
        path = tmp_path / "file.mercer"
        path.write_bytes(content)
        begin = time.perf_counter()
        with pytest.raises(io.FormatError) as caught:
            io.load(path)
        assert time.perf_counter() - begin < SECONDS
        message = str(caught.value)
        assert message.startswith(repr(str(path))) and "\n" not in message and len(message) < 1000
        assert type(caught.value) is io.FormatError
        return message.removeprefix(repr(str(path)))

    return refused


def parts(content):
    """The JSON of the file, the structure in it, and the bytes of the arrays."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["mercer"]), content[8 + length :]


def joined(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


def signed(content):
    """With the digest that belongs to it, as its author would put there."""
    return content.replace(ZEROS.encode(), hashlib.sha256(content).hexdigest().encode(), 1)


def forged(structure, arrays=None, text=None):
    """A file of any structure (or of the text of one) with a valid digest."""
    rest = {"format": 1, "version": "0.1.0", "sha256": ZEROS}
    text = json.dumps(structure) if text is None else text
    metadata = json.dumps(rest, separators=(",", ":"))[:-1] + f',"structure":{text}}}'
    arrays = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    return signed(serialise(arrays, {"mercer": metadata}))


def edited(content, change):
    """A good file with a change of its structure, and a valid digest."""
    header, ours, data = parts(content)
    ours["sha256"] = ZEROS
    ours["structure"] = change(ours["structure"]) or ours["structure"]
    header["__metadata__"]["mercer"] = json.dumps(ours, separators=(",", ":"))
    return signed(joined(header, data))


def test_the_forger_can_forge(good, tmp_path):
    """What is refused below is refused for what it holds: these files are as well made as those of `save`."""
    path = tmp_path / "file"
    path.write_bytes(edited(good, lambda structure: None))
    assert jax.tree.structure(io.load(path)) == jax.tree.structure(model())
    node = {"tuple": [1, {"array": "a", "type": "numpy", "dtype": "float64"}]}
    path.write_bytes(forged(node, {"a": np.ones(2)}))
    assert io.load(path)[0] == 1


@pytest.mark.parametrize("seed", range(12))
def test_altered_bytes(seed, good, refused):
    """Twenty files for each seed, of all kinds of accident."""
    rng = random.Random(seed)
    length = int.from_bytes(good[:8], "little") + 8

    def flipped(low, high):
        content = bytearray(good)
        content[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
        return bytes(content)

    for _ in range(4):
        start, stop = sorted(rng.sample(range(len(good)), 2))
        refused(flipped(0, length))
        refused(flipped(length, len(good)))
        refused(good[: rng.randrange(len(good))])
        refused(good[:start] + rng.randbytes(stop - start) + good[stop:])
        refused(good[:start] + good[stop:])


def test_every_byte_of_the_header_counts(good, refused):
    length = int.from_bytes(good[:8], "little") + 8
    for i in range(0, length, 37):
        refused(good[:i] + bytes([good[i] ^ 32]) + good[i + 1 :])
    assert b" " not in good[8:length] or refused(good[:length].replace(b" ", b"\n", 1) + good[length:])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 1000, 100_000])
def test_random_bytes(size, refused):
    rng = random.Random(size)
    for _ in range(5):
        refused(rng.randbytes(size))
        refused((size // 2).to_bytes(8, "little") + rng.randbytes(size))
    refused(good_length := b"\xff" * 8 + b"{}")
    refused(b"\xff" * 7 + b"\x7f" + good_length)


def test_more_bytes_than_there_should_be(good, refused):
    for content in (good + b"\x00", good + good, b"\x00" + good, good[:-8] + good[-7:]):
        refused(content)


def test_other_headers(good, refused):
    header, _, data = parts(good)
    other = parts(forged([1, 2]))[0]
    for changed in (other, {}, [], 1, {"__metadata__": {}}, {"__metadata__": 1}, {"__metadata__": {"mercer": "1"}}):
        refused(joined(changed, data))
    for metadata in ("", "{", "[]", "null", '{"format":1}', '{"format":0}', '{"format":"1"}', "[" * 100_000, "\x00"):
        refused(joined(header | {"__metadata__": {"mercer": metadata}}, data))
    for text in (b"", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b'{"__metadata__":{},"__metadata__":{}}'):
        refused(joined(text, data))


def test_a_newer_format(good, refused):
    header, ours, data = parts(good)
    ours |= {"format": 2, "version": "9.1", "sha256": ZEROS, "more": []}
    header["__metadata__"]["mercer"] = json.dumps(ours)
    message = refused(signed(joined(header, data)))
    assert message == " was written by a newer mercer (format 2, version '9.1'): upgrade mercer"


def test_tensors_that_lie(good, refused):
    """Shapes and places that contradict the bytes, with a valid digest."""

    def with_tensors(change):
        header, ours, data = parts(good)
        ours["sha256"] = ZEROS
        header["__metadata__"]["mercer"] = json.dumps(ours, separators=(",", ":"))
        change(header, [name for name in header if name != "__metadata__"])
        refused(signed(joined(header, data)))

    for shape in ([10**15], [2**62, 2**62], [2**63], [-1], [1.5], "4", [0, 2**62], [True], [[4]], [10**400], None):
        with_tensors(lambda header, names, shape=shape: header[names[0]].update(shape=shape))
    for dtype in ("F32", "F8_E4M3", "O", "object", "I64", "", 3, None):
        with_tensors(lambda header, names, dtype=dtype: header[names[0]].update(dtype=dtype))
    for place in ([0, 10**15], [8, 0], [-8, 0], [0], [0, 0], [2**63, 2**64], "ab", None):
        with_tensors(lambda header, names, place=place: header[names[0]].update(data_offsets=place))
    with_tensors(lambda header, names: header.pop(names[0]))
    with_tensors(lambda header, names: header.update({names[0]: header[names[1]], names[1]: header[names[0]]}))
    with_tensors(lambda header, names: header.update({"../../etc/passwd": header.pop(names[0])}))
    with_tensors(lambda header, names: header.update(other=header[names[0]]))


def kernel(**fields):
    number = {"array": "a", "type": "jax", "dtype": "float64"}
    other = {"array": "b", "type": "jax", "dtype": "float64"}
    return {"class": "mercer.kernels.RBF", "fields": {"lengthscale": number, "variance": other} | fields}


ONES = {"a": 1.0, "b": 1.0}
NAMES = ["os.system", "builtins.eval", "builtins.exec", "subprocess.Popen", "posix.system", "mercer.io.load", "", "RBF"]
NAMES += ["mercer.kernels.stationary.RBF", "mercer.kernels.Kernel", "mercer.kernels.RBF.__init__", "jax.numpy.load"]
NAMES += ["jax.numpy.save", "jax.nn.relu.__globals__", "jax.pure_callback", "../../evil", "equinox.nn.StateIndex"]
NAMES += [None, 1, [], {}, ["mercer.kernels.RBF"], "__reduce__", "mercer.kernels.RBF\x00", "x" * 1000]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: str(name)[:30])
def test_names_that_are_not_known(name, refused):
    refused(forged({"class": name, "fields": {}}))
    refused(forged({"function": name}))
    refused(forged({"partial": {"function": name}, "args": ["echo"], "keywords": {}}))


def test_an_unknown_class_is_named(refused):
    assert "the class 'my.Kernel' is not known here" in refused(forged({"class": "my.Kernel", "fields": {}}))


VALUES = {
    # what is none of the objects of the format
    "empty object": {},
    "unknown object": {"__reduce__": ["os.system", ["echo"]]},
    "pickle": {"py/object": "os.system", "py/reduce": []},
    "more keys": {"tuple": [], "list": []},
    "other order": {"fields": {}, "class": "mercer.means.Zero"},
    "too few keys": {"class": "mercer.means.Zero"},
    "tuple of nothing": {"tuple": None},
    "tuple of a text": {"tuple": "abc"},
    "tuple of an object": {"tuple": {"tuple": []}},
    "dict of a dict": {"dict": {"a": 1}},
    "dict of triples": {"dict": [[1, 2, 3]]},
    "dict of texts": {"dict": ["ab"]},
    "dict with a list as key": {"dict": [[[], 1]]},
    "dict with a key twice": {"dict": [["a", 1], ["a", 2]]},
    "slice": {"slice": [1, 2]},
    "float": {"float": "7ff0"},
    "float of a number": {"float": 1.0},
    "complex": {"complex": [1.0]},
    "complex of texts": {"complex": ["1", "2"]},
    "complex of integers": {"complex": [1, 2]},
    "bytes": {"bytes": "xyz"},
    "bytes of a number": {"bytes": 10**9},
    "dtype": {"dtype": "O"},
    "dtype of fields": {"dtype": "f8,i4"},
    "dtype of a list": {"dtype": [["a", "O"]]},
    "partial of data": {"partial": 1, "args": [], "keywords": {}},
    "partial with text": {"partial": {"function": "jax.nn.relu"}, "args": "ab", "keywords": {}},
    "partial with a list": {"partial": {"function": "jax.nn.relu"}, "args": [], "keywords": []},
    "Partial of data": {"Partial": [], "args": [], "keywords": {}},
    # classes
    "no fields": {"class": "mercer.kernels.RBF", "fields": {}},
    "fields as a list": {"class": "mercer.means.Zero", "fields": []},
    "fields as a class": {"class": "mercer.means.Zero", "fields": {"class": "mercer.means.Zero", "fields": {}}},
    "another field": {"class": "mercer.means.Zero", "fields": {"a": 1}},
    "__class__": {"class": "mercer.means.Zero", "fields": {"__class__": {"function": "jax.nn.relu"}}},
    "__dict__": {"class": "mercer.means.Zero", "fields": {"__dict__": {"dict": []}}},
    "an abstract class": {"class": "mercer.likelihoods.Likelihood", "fields": {}},
    "a class as a function": {"function": "mercer.kernels.RBF"},
    "a function as a class": {"class": "jax.nn.relu", "fields": {}},
    "NamedTuple": {"class": "mercer.training.Fit", "fields": {"model": 1}},
    "model of numbers": {"class": "mercer.Model", "fields": {"posterior": 1, "likelihood": 2}},
    "model of a mean": {
        "class": "mercer.GP",
        "fields": {"kernel": {"class": "mercer.means.Zero", "fields": {}}, "mean": None},
    },
    "sum of nothing known": {"class": "mercer.kernels.Sum", "fields": {"kernels": {"tuple": [1]}}},
    "sum of a list": {"class": "mercer.kernels.Sum", "fields": {"kernels": []}},
    "weight of text": {"class": "mercer.objectives.PredictiveLogLikelihood", "fields": {"weight": "1"}},
    "functions for numbers": kernel(lengthscale={"function": "jax.nn.relu"}, variance={"function": "jax.nn.relu"}),
    "numbers for arrays": kernel(lengthscale=1.0, variance=1.0),
    "classes of text": {
        "class": "mercer.likelihoods.Softmax",
        "fields": {"classes": "3", "num_samples": 8},
    },
    # arrays
    "no such array": {"array": "a", "type": "jax", "dtype": "float64"},
    "array without a name": {"array": None, "type": "jax", "dtype": "float64"},
    "array named by a list": {"array": [], "type": "jax", "dtype": "float64"},
    "no such key": {"key": "a", "impl": "threefry2x32"},
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_are_none(name, refused):
    refused(forged(VALUES[name]))
    refused(forged([VALUES[name]]))


def test_arrays_that_do_not_fit(refused):
    def array(**changes):
        return {"array": "a", "type": "jax", "dtype": "float64"} | changes

    for node in (
        array(type="pickle"),
        array(type=None),
        array(dtype="float32"),
        array(dtype="int64"),
        array(dtype="complex128"),
        array(dtype="object"),
        array(dtype=None),
        array(type="scalar"),
        [array(), array()],
        1,
        {"key": "a", "impl": "threefry2x32"},
        {"key": "a", "impl": "os.system"},
    ):
        refused(forged(node, {"a": np.ones(3)}))
    refused(forged(array(), {"a": np.ones(3), "b": np.ones(3)}))
    refused(forged({"key": "a", "impl": "threefry2x32"}, {"a": np.ones(3, np.uint32)}))
    refused(forged(array(dtype="float64"), {"a": np.zeros((0, 2**40))}))
    booleans = forged(array(dtype="bool"), {"a": np.array([True])})
    header, ours, _ = parts(booleans)
    header["__metadata__"]["mercer"] = json.dumps(ours | {"sha256": ZEROS}, separators=(",", ":"))
    assert "no booleans" in refused(signed(joined(header, b"\x02")))


def test_parameters_that_no_constructor_takes(refused):
    assert "RBF: variance expects positive" in refused(forged(kernel(), ONES | {"b": -1.0}))
    assert "RBF: lengthscale expects positive" in refused(forged(kernel(), ONES | {"a": np.nan}))
    refused(forged(kernel(), ONES | {"a": np.ones((2, 2))}))
    integer = {"array": "b", "type": "jax", "dtype": "int64"}
    refused(forged(kernel(variance=integer), ONES | {"b": np.asarray(1)}))


def test_shapes_that_contradict_each_other(refused):
    def node(name):
        return {"array": name, "type": "jax", "dtype": "float64"}

    pair = {
        "class": "mercer.objectives.Batch",
        "fields": {"X": node("X"), "Y": node("Y"), "weights": None, "num_data": 3, "complete": True},
    }
    assert "'B P'" in refused(forged(pair, {"X": np.ones((3, 1)), "Y": np.ones((4, 1))}))
    assert "'B D'" in refused(forged(pair, {"X": np.ones((3, 1, 1)), "Y": np.ones((3, 1))}))


def leaves(node, path=()):
    """The places of a structure."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, below in items:
        yield from leaves(below, (*path, key))


def replaced(node, path, value):
    if not path:
        return value
    node[path[0]] = replaced(node[path[0]], path[1:], value)
    return node


SUBSTITUTES = [
    {"class": "os.system", "fields": {}},
    {"array": "a", "type": "jax", "dtype": "float64"},
    {"tuple": 3},
    {"x": 1},
]


def test_every_place_of_a_structure(good, refused):
    """Nonsense at each place of a valid structure, one at a time."""
    places = list(leaves(parts(good)[1]["structure"]))
    assert len(places) > 100
    for i, place in enumerate(places):
        value = SUBSTITUTES[i % len(SUBSTITUTES)]
        refused(edited(good, lambda structure, place=place, value=value: replaced(structure, place, value)))


TEXTS = {
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "lists deeper than allowed": "[" * 102 + "]" * 102,
    "deep tuples": '{"tuple":[' * 20_000 + "]}" * 20_000,
    "deep and legal for Python": '{"tuple":[' * 200 + "]}" * 200,
    "large integer": "1" + "0" * 400,
    "larger integer": "9" * 100_000,
    "integer of 65 bits": str(2**64),
    "large float": "1e999",
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "duplicate keys": '{"tuple":[],"tuple":[1]}',
    "duplicate fields": '{"class":"mercer.means.Zero","fields":{},"fields":{}}',
    "code": "__import__('os').system('echo')",
    "trailing text": "1} 2",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_not_json_of_ours(name, refused):
    refused(forged(None, text=TEXTS[name]))


def test_a_structure_that_is_too_long(refused):
    refused(forged(None, text="[" + "1," * 2**23 + "1]"))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_files_of_other_kinds(tmp_path, monkeypatch, refused, good):
    monkeypatch.chdir(tmp_path)
    archive = streams.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("../../evil.py", "/etc/passwd", "structure.json", "a" * 300):
            file.writestr(name, good)
    arrays, objects = streams.BytesIO(), streams.BytesIO()
    np.savez(arrays, a=np.ones(3))
    np.save(objects, np.array([Evil()]), allow_pickle=True)
    pickles = [pickle.dumps(value, protocol) for value in (Evil(), [1, 2]) for protocol in range(6)]
    for content in (
        archive.getvalue(),
        arrays.getvalue(),
        objects.getvalue(),
        *pickles,
        b"a,b\n1,2\n",
        b"{}",
        b"\x89HDF\r\n\x1a\n",
    ):
        refused(content)
        refused(len(content).to_bytes(8, "little") + content)
    assert not os.path.exists("executed")


_LISTENS = """
import sys
from mercer import io

EVENTS = ("exec", "compile", "os.system", "subprocess.Popen", "os.exec", "pickle.find_class", "socket.connect")
listening = False


def listen(event, arguments):
    if listening and event in EVENTS:
        sys.exit(f"{event} {arguments}")


def load(path):
    try:
        io.load(path)
    except io.FormatError:
        return
    sys.exit(f"{path} was loaded")


sys.addaudithook(listen)
for path in sys.argv[1:]:
    load(path)  # once for what is imported when an error is first made
before, listening = set(sys.modules), True
for path in sys.argv[1:]:
    load(path)
listening = False
assert not {"antigravity", "this"} & set(sys.modules) and set(sys.modules) == before
"""


def test_no_code_runs_and_nothing_is_imported(good, tmp_path):
    """Python's own events: no import, no code compiled, no process. A process of its own, as checks of types compile code."""
    contents = [
        forged({"class": "antigravity.Module", "fields": {}}),
        forged({"function": "this.c"}),
        forged({"partial": {"function": "os.system"}, "args": ["echo"], "keywords": {}}),
        edited(good, lambda structure: structure | {"class": "os.system"}),
    ]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    found = subprocess.run([sys.executable, "-c", _LISTENS, *map(str, paths)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_what_is_not_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing"):
        io.load(tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "fifo", "/dev/null", tmp_path / "loop", f"{tmp_path}\x00"):
        with pytest.raises(io.FormatError):
            io.load(path)


def test_a_large_file_that_is_not_ours_is_not_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.write(struct.pack("<Q", 2**39))
        file.truncate(2**40)
    with pytest.raises(io.FormatError):
        io.load(tmp_path / "sparse")


def test_a_checkpoint_is_not_a_model(tmp_path, refused):
    X = np.linspace(0.0, 1.0, 5)[:, None]
    model = mc.Model(mc.GP(mc.kernels.RBF()), mc.likelihoods.Gaussian(0.1))
    mc.fit(model, mc.objectives.MarginalLikelihood(), (X, X), steps=1, checkpoint=tmp_path / "run")
    assert "is a checkpoint of a training run" in refused((tmp_path / "run").read_bytes())
