"""The operators that a graph may use: arithmetic on tensors, of ONNX's own domain.

Not among them: what makes or takes texts, sequences or optional values, what draws random numbers, what decodes files,
`Scan` and `SequenceMap` (their length comes with the data), and every domain of somebody else's.
"""

from __future__ import annotations

DOMAINS = (b"", b"ai.onnx")
"""Two names for ONNX's own operators."""
CONTROL_FLOW = {b"If": (b"then_branch", b"else_branch"), b"Loop": (b"body",)}
"""The operators that hold graphs, and the attributes in which they hold them."""
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
