"""Rules for ONNX files: allowed messages, operators, tensors and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from sojourn.errors import GraphRefused
from sojourn.model.protobuf import FIXED32, LENGTH, VARINT, Field, Message, MessageForm, WireReader

Known = Sequence[tuple[int, ...] | None]
"""The constant integers of each input, or None if unknown."""

# The messages of onnx.proto, with the maximum count of each field.
#
# A file with any other field is rejected. Listed fields that no rule checks (descriptions, and types that are inferred
# anyway) do not affect what a graph computes.

MAX_NODES = 1 << 16
MAX_TENSORS = 1 << 15
_MAX_VALUES = 1 << 17
_MAX_NOTES = 1 << 10
MAX_NUMBERS = 1 << 16
"""Maximum numbers in a list attribute."""
MAX_DIMENSIONS = 8


_METADATA = Field("metadata_props", LENGTH, _MAX_NOTES)

OPSET = MessageForm("operator set", {1: Field("domain", LENGTH), 2: Field("version", VARINT)})
MODEL = MessageForm(
    "model",
    {
        1: Field("ir_version", VARINT),
        2: Field("producer_name", LENGTH),
        3: Field("producer_version", LENGTH),
        4: Field("domain", LENGTH),
        5: Field("model_version", VARINT),
        6: Field("doc_string", LENGTH),
        7: Field("graph", LENGTH),
        8: Field("opset_import", LENGTH, 64),
        14: _METADATA,
        20: Field("training_info", LENGTH, _MAX_NOTES),
        25: Field("functions", LENGTH, _MAX_NOTES),
        26: Field("configuration", LENGTH, _MAX_NOTES),
    },
)
GRAPH = MessageForm(
    "graph",
    {
        1: Field("node", LENGTH, MAX_NODES),
        2: Field("name", LENGTH),
        5: Field("initializer", LENGTH, MAX_TENSORS),
        10: Field("doc_string", LENGTH),
        11: Field("input", LENGTH, MAX_TENSORS),
        12: Field("output", LENGTH, 1 << 10),
        13: Field("value_info", LENGTH, _MAX_VALUES),
        14: Field("quantization_annotation", LENGTH, _MAX_VALUES),
        15: Field("sparse_initializer", LENGTH, MAX_TENSORS),
        16: _METADATA,
    },
)
NODE = MessageForm(
    "node",
    {
        1: Field("input", LENGTH, MAX_TENSORS),
        2: Field("output", LENGTH, MAX_TENSORS),
        3: Field("name", LENGTH),
        4: Field("op_type", LENGTH),
        5: Field("attribute", LENGTH, 64),
        6: Field("doc_string", LENGTH),
        7: Field("domain", LENGTH),
        8: Field("overload", LENGTH),
        9: _METADATA,
        10: Field("device_configurations", LENGTH, _MAX_NOTES),
    },
)
ATTRIBUTE = MessageForm(
    "attribute",
    {
        1: Field("name", LENGTH),
        2: Field("f", FIXED32),
        3: Field("i", VARINT),
        4: Field("s", LENGTH),
        5: Field("t", LENGTH),
        6: Field("g", LENGTH),
        7: Field("floats", FIXED32, MAX_NUMBERS, packed=True),
        8: Field("ints", VARINT, MAX_NUMBERS, packed=True),
        9: Field("strings", LENGTH, _MAX_NOTES),
        10: Field("tensors", LENGTH, _MAX_NOTES),
        11: Field("graphs", LENGTH, _MAX_NOTES),
        13: Field("doc_string", LENGTH),
        14: Field("tp", LENGTH),
        15: Field("type_protos", LENGTH, _MAX_NOTES),
        20: Field("type", VARINT),
        21: Field("ref_attr_name", LENGTH),
        22: Field("sparse_tensor", LENGTH),
        23: Field("sparse_tensors", LENGTH, _MAX_NOTES),
    },
)
TENSOR = MessageForm(
    "tensor",
    {
        1: Field("dims", VARINT, MAX_DIMENSIONS, packed=True),
        2: Field("data_type", VARINT),
        3: Field("segment", LENGTH),
        4: Field("float_data", LENGTH),  # packed into one block, as all writers do
        5: Field("int32_data", LENGTH),
        6: Field("string_data", LENGTH, MAX_NUMBERS),
        7: Field("int64_data", LENGTH),
        8: Field("name", LENGTH),
        9: Field("raw_data", LENGTH),
        10: Field("double_data", LENGTH),
        11: Field("uint64_data", LENGTH),
        12: Field("doc_string", LENGTH),
        13: Field("external_data", LENGTH, 64),
        14: Field("data_location", VARINT),
        16: _METADATA,
    },
)
VALUE = MessageForm(
    "value",
    {1: Field("name", LENGTH), 2: Field("type", LENGTH), 3: Field("doc_string", LENGTH), 4: _METADATA},
)
TYPE = MessageForm("type", {1: Field("tensor_type", LENGTH), 6: Field("denotation", LENGTH)})
TENSOR_TYPE = MessageForm("tensor type", {1: Field("elem_type", VARINT), 2: Field("shape", LENGTH)})
SHAPE = MessageForm("shape", {1: Field("dim", LENGTH, MAX_DIMENSIONS)})
DIMENSION = MessageForm(
    "dimension", {1: Field("dim_value", VARINT), 2: Field("dim_param", LENGTH), 3: Field("denotation", LENGTH)}
)


# The allowed operators: tensor arithmetic in the ONNX domain.
#
# Not allowed: operators on strings, sequences or optional values, random numbers, file decoders, `Scan` and
# `SequenceMap` (their length depends on the data), and all other domains.

DOMAINS = (b"", b"ai.onnx")
"""The two names of the ONNX domain."""
CONTROL_FLOW = {b"If": (b"then_branch", b"else_branch"), b"Loop": (b"body",)}
"""The operators with inner graphs, and the attributes that contain these."""
OPERATORS = frozenset(
    b"""
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitShift
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat
    Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Det Div
    Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements
    GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization LpPool MatMul MatMulInteger Max
    MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not OneHot Or PRelu
    Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
    Resize ReverseSequence RotaryEmbedding Round ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size
    Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum SwiGLU Swish Tan
    Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """.split()
)


FLOAT, INT64 = 1, 7
MAX_KNOWN_NUMBERS = 64
"""Larger constants cannot be shapes or lengths."""
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FIXED = {"float_data": 4, "double_data": 8}


@dataclass(frozen=True)
class ElementType:
    """A number type: its name, its size in bytes, and the tensor field for data that is not raw."""

    name: str
    size: int
    held_in: str


TYPES = {
    1: ElementType("float32", 4, "float_data"),
    2: ElementType("uint8", 1, "int32_data"),
    3: ElementType("int8", 1, "int32_data"),
    4: ElementType("uint16", 2, "int32_data"),
    5: ElementType("int16", 2, "int32_data"),
    6: ElementType("int32", 4, "int32_data"),
    7: ElementType("int64", 8, "int64_data"),
    9: ElementType("bool", 1, "int32_data"),
    10: ElementType("float16", 2, "int32_data"),
    11: ElementType("float64", 8, "double_data"),
    12: ElementType("uint32", 4, "uint64_data"),
    13: ElementType("uint64", 8, "uint64_data"),
    16: ElementType("bfloat16", 2, "int32_data"),
}
"""Types by ONNX number, without strings, complex numbers and types below one byte."""


def check_tensor(tensor: Message, reader: WireReader, where: str) -> None:
    """Reject a tensor with external data, or with data that does not fit its shape and type."""
    # Any mark of external data is rejected: onnxruntime would open the named file.
    if "external_data" in tensor or tensor.number("data_location") != 0:
        raise GraphRefused(f"{where} has its data in another file: all data must be in the graph")
    if "segment" in tensor or "string_data" in tensor:
        raise GraphRefused(f"{where} is split into segments, or contains strings: neither is allowed")
    kind = TYPES.get(tensor.number("data_type"))
    if kind is None:
        raise GraphRefused(f"{where} is of type {tensor.number('data_type')}, which is not allowed")
    numbers = _size(tensor, where)
    held = [name for name in _DATA if tensor.size(name)]
    if len(held) > 1 or (held and held[0] not in ("raw_data", kind.held_in)):
        raise GraphRefused(f"{where} of {kind.name} has its data in {' and '.join(held)}")
    found = _count_held(tensor, held[0], kind, reader) if held else 0
    if found != numbers:
        raise GraphRefused(f"{where} has {found:g} numbers of {kind.name}, but its shape has {numbers}")


def whole_numbers(tensor: Message, reader: WireReader) -> tuple[int, ...] | None:
    """Return the numbers of a small int32 or int64 tensor, which may be a shape or a length, or None."""
    kind = TYPES[tensor.number("data_type")]
    if kind.name not in ("int32", "int64") or _size(tensor, "") > MAX_KNOWN_NUMBERS:
        return None
    if tensor.size("raw_data"):
        start, end = tensor.span("raw_data")
        raw = reader.data[start:end]
        return tuple(
            int.from_bytes(raw[at : at + kind.size], "little", signed=True) for at in range(0, len(raw), kind.size)
        )
    return tuple(reader.varints(*tensor.span(kind.held_in), MAX_KNOWN_NUMBERS))


def _size(tensor: Message, where: str) -> int:
    axes = tensor.numbers("dims", MAX_DIMENSIONS)
    if any(axis < 0 for axis in axes):
        raise GraphRefused(f"{where} has an axis of {min(axes)}")
    return prod(axes)


def _count_held(tensor: Message, name: str, kind: ElementType, reader: WireReader) -> float:
    """Return the count of numbers; a fraction if the byte count is not a multiple of the type's size."""
    if name == "raw_data":
        return tensor.size(name) / kind.size
    if name in _FIXED:
        return tensor.size(name) / _FIXED[name]
    return reader.count_varints(*tensor.span(name))


MAX_LOOP_ROUNDS = 10_000
"""Maximum iterations of a loop."""
MAX_TENSOR = 1 << 28
"""Maximum numbers in a tensor of constant shape; memory limits bound shapes that depend on the data."""
_MAX_WINDOW = 1 << 16
_WINDOWS = frozenset((b"kernel_shape", b"strides", b"dilations", b"pads", b"output_padding", b"output_shape"))
_SHAPE_INPUTS = {b"ConstantOfShape": 0, b"Expand": 1, b"Tile": 1, b"CenterCropPad": 1, b"Resize": 3, b"Col2Im": 1}
"""The input with the output's shape, or with the repeats of the input."""
_ONE_SIZE = {b"OneHot": 1, b"TopK": 1}


def trip_count(known: tuple[int, ...] | None, where: str) -> int:
    """Return the maximum iterations of a loop, which must be a constant of the graph."""
    if known is None or len(known) != 1:
        raise GraphRefused(f"{where}: the maximum number of iterations must be a constant of the graph")
    if not 0 <= known[0] <= MAX_LOOP_ROUNDS:
        raise GraphRefused(f"{where} has {known[0]:,} iterations; at most {MAX_LOOP_ROUNDS:,} are allowed")
    return known[0]


def check_window(attribute: bytes, numbers: tuple[int, ...], where: str) -> None:
    """Reject an implausibly large window or padding."""
    if attribute in _WINDOWS and any(abs(each) > _MAX_WINDOW for each in numbers):
        raise GraphRefused(f"{where} is {max(numbers, key=abs):,}, but at most {_MAX_WINDOW:,} is allowed")


def check_growth(operator: bytes, known: Known, where: str) -> None:
    """Reject an operator whose constant output size is too large."""
    if (size := _written_size(operator, known)) > MAX_TENSOR:
        raise GraphRefused(f"{where} creates a tensor of {size:,} numbers; at most {MAX_TENSOR:,} are allowed")


def _written_size(operator: bytes, known: Known) -> int:
    """Return the output size of an operator, as far as constants determine it, or 0."""
    if operator in _SHAPE_INPUTS:
        return prod(abs(each) for each in _known_input(known, _SHAPE_INPUTS[operator]) if each)
    if operator in _ONE_SIZE:
        return max(_known_input(known, _ONE_SIZE[operator]), default=0)
    if operator == b"Pad":
        return max((abs(each) for each in _known_input(known, 1)), default=0)
    if operator == b"Range" and len(known) == 3 and all(each is not None and len(each) == 1 for each in known):
        start, limit, step = (each[0] for each in known if each)
        return max(0, (limit - start) // step) if step else MAX_TENSOR + 1
    return 0


def _known_input(known: Known, at: int) -> tuple[int, ...]:
    return (known[at] or ()) if at < len(known) else ()
