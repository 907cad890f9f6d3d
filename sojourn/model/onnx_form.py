"""What an ONNX file may hold: the messages of onnx.proto, with how often each field may come.

A field that is missing here is one that Sojourn does not know, and a file that has it is refused. Fields that are here
and that no rule looks at (descriptions, and types that are inferred anyway) mean nothing to what a graph does.
"""

from __future__ import annotations

from sojourn.model.protobuf import FIXED32, LENGTH, VARINT, Field, MessageForm

MOST_NODES = 1 << 16
MOST_TENSORS = 1 << 15
_MOST_VALUES = 1 << 17
_MOST_NOTES = 1 << 10
MOST_NUMBERS = 1 << 16
"""Numbers in a list of an attribute."""
MOST_DIMENSIONS = 8


def _notes(name: str = "metadata_props") -> Field:
    return Field(name, LENGTH, _MOST_NOTES)


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
        14: _notes(),
        20: Field("training_info", LENGTH, _MOST_NOTES),
        25: Field("functions", LENGTH, _MOST_NOTES),
        26: Field("configuration", LENGTH, _MOST_NOTES),
    },
)
GRAPH = MessageForm(
    "graph",
    {
        1: Field("node", LENGTH, MOST_NODES),
        2: Field("name", LENGTH),
        5: Field("initializer", LENGTH, MOST_TENSORS),
        10: Field("doc_string", LENGTH),
        11: Field("input", LENGTH, MOST_TENSORS),
        12: Field("output", LENGTH, 1 << 10),
        13: Field("value_info", LENGTH, _MOST_VALUES),
        14: Field("quantization_annotation", LENGTH, _MOST_VALUES),
        15: Field("sparse_initializer", LENGTH, MOST_TENSORS),
        16: _notes(),
    },
)
NODE = MessageForm(
    "node",
    {
        1: Field("input", LENGTH, MOST_TENSORS),
        2: Field("output", LENGTH, MOST_TENSORS),
        3: Field("name", LENGTH),
        4: Field("op_type", LENGTH),
        5: Field("attribute", LENGTH, 64),
        6: Field("doc_string", LENGTH),
        7: Field("domain", LENGTH),
        8: Field("overload", LENGTH),
        9: _notes(),
        10: Field("device_configurations", LENGTH, _MOST_NOTES),
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
        7: Field("floats", FIXED32, MOST_NUMBERS, packed=True),
        8: Field("ints", VARINT, MOST_NUMBERS, packed=True),
        9: Field("strings", LENGTH, _MOST_NOTES),
        10: Field("tensors", LENGTH, _MOST_NOTES),
        11: Field("graphs", LENGTH, _MOST_NOTES),
        13: Field("doc_string", LENGTH),
        14: Field("tp", LENGTH),
        15: Field("type_protos", LENGTH, _MOST_NOTES),
        20: Field("type", VARINT),
        21: Field("ref_attr_name", LENGTH),
        22: Field("sparse_tensor", LENGTH),
        23: Field("sparse_tensors", LENGTH, _MOST_NOTES),
    },
)
TENSOR = MessageForm(
    "tensor",
    {
        1: Field("dims", VARINT, MOST_DIMENSIONS, packed=True),
        2: Field("data_type", VARINT),
        3: Field("segment", LENGTH),
        4: Field("float_data", LENGTH),  # the numbers of a tensor come as one block, as every writer does it
        5: Field("int32_data", LENGTH),
        6: Field("string_data", LENGTH, MOST_NUMBERS),
        7: Field("int64_data", LENGTH),
        8: Field("name", LENGTH),
        9: Field("raw_data", LENGTH),
        10: Field("double_data", LENGTH),
        11: Field("uint64_data", LENGTH),
        12: Field("doc_string", LENGTH),
        13: Field("external_data", LENGTH, 64),
        14: Field("data_location", VARINT),
        16: _notes(),
    },
)
VALUE = MessageForm(
    "value",
    {1: Field("name", LENGTH), 2: Field("type", LENGTH), 3: Field("doc_string", LENGTH), 4: _notes()},
)
TYPE = MessageForm("type", {1: Field("tensor_type", LENGTH), 6: Field("denotation", LENGTH)})
TENSOR_TYPE = MessageForm("tensor type", {1: Field("elem_type", VARINT), 2: Field("shape", LENGTH)})
SHAPE = MessageForm("shape", {1: Field("dim", LENGTH, MOST_DIMENSIONS)})
DIMENSION = MessageForm(
    "dimension", {1: Field("dim_value", VARINT), 2: Field("dim_param", LENGTH), 3: Field("denotation", LENGTH)}
)
