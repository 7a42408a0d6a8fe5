# SPDX-License-Identifier: Apache-2.0
"""The operators called on the tensors of a case, which are NCX and IOX, with results in NCX and IOX, in any layout between."""

import torch

from cases import Case, from_data, from_weights, to_data, to_weights

ops = torch.ops.torch_ext


def conv_transpose(case: Case, t, data_format="NCX", weights_format="IOX", bias=True):
    y = ops.conv_transpose(
        to_data(t["x"], data_format),
        to_weights(t["w"], weights_format),
        t["bias"] if bias else None,
        **case.attributes(data_format, weights_format),
    )
    return from_data(y, data_format)


def backward_data(case: Case, t, data_format="NCX", weights_format="IOX"):
    x = ops.conv_transpose_backward_data(
        to_data(t["y"], data_format), to_weights(t["w"], weights_format), **case.attributes(data_format, weights_format)
    )
    return from_data(x, data_format)


def backward_weights(case: Case, t, data_format="NCX", weights_format="IOX"):
    shape = list(to_weights(t["w"], weights_format).shape)
    w = ops.conv_transpose_backward_weights(
        to_data(t["x"], data_format),
        to_data(t["y"], data_format),
        **case.attributes(data_format, weights_format),
        weights_shape=shape,
    )
    return from_weights(w, weights_format)


def old_attributes(case: Case, data_format, filter_format):
    """Attributes of the two older operations."""
    attributes = case.attributes(data_format)
    del attributes["weights_format"]
    return {**attributes, "filter_format": filter_format}


# ConvolutionBackpropData-1 calls "out" the channels of output_delta.
OLD_NAMES = {"XOI": "XIO", "IOX": "OIX"}


def convolution_backprop_data(case: Case, t, data_format="NCX", weights_format="IOX", **more):
    y = ops.convolution_backprop_data(
        to_data(t["x"], data_format),
        to_weights(t["w"], weights_format),
        **old_attributes(case, data_format, OLD_NAMES[weights_format]),
        **more,
    )
    return from_data(y, data_format)


def backprop_filters(case: Case, t, data_format="NCX", filter_format="XIO"):
    w = ops.conv_transpose_backprop_filters(
        to_data(t["x"], data_format),
        to_data(t["y"], data_format),
        **old_attributes(case, data_format, filter_format),
        filter_shape=list(to_weights(t["w"], filter_format).shape),
    )
    return from_weights(w, filter_format)
