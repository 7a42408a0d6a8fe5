"""Weights packed once, for inference."""

import torch

from .nn import _ConvTranspose


def prepack(module: torch.nn.Module, *example_inputs, **example_keywords) -> torch.nn.Module:
    """Packs the weights of every layer of :mod:`torch_ext.nn` in ``module`` once, instead of in each call; returns ``module``.

    It pays where weights are large against the images: small planes, short signals, batches of one. What is packed depends on the
    layer's attributes, the type and the instruction set, and to a small degree on the size of the input, so the module is run once
    on the example (in evaluation mode, without gradients). Other inputs give the same results; at worst they are packed for as
    usual. So does a file that is loaded on another processor.

    The weights are frozen: ``requires_grad`` of the layers' parameters becomes False, and what is written into them afterwards
    (``weight.data.clamp_()`` ...) is not seen, until ``load_state_dict``, ``.to()`` or another prepack packs them again. The
    state_dict stays what it was. The module can be saved, scripted, traced and exported; where a gradient or autocast is asked for
    it computes as if it were not packed. On a GPU nothing is packed.

    Args:
        module: holds layers of torch_ext.nn, or is one.
        example_inputs, example_keywords: what ``module`` is called with.

    Raises:
        ValueError: module holds no such layer, or the example reaches none.
    """
    layers = [m for m in module.modules() if isinstance(m, _ConvTranspose)]
    if not layers:
        raise ValueError(f"prepack: {type(module).__name__} holds no ConvTranspose layer of torch_ext.nn")
    seen = {}

    def see(layer, arguments):
        input = arguments[0]
        batched = input if input.dim() == len(layer.kernel_size) + 2 else input.unsqueeze(0)
        last = batched.dim() > 3 and not batched.is_contiguous() and batched.is_contiguous(
            memory_format=torch.channels_last if batched.dim() == 4 else torch.channels_last_3d
        )
        seen.setdefault(layer, (batched.shape, last))

    training = {m: m.training for m in module.modules()}
    hooks = [layer.register_forward_pre_hook(see) for layer in layers]
    try:
        with torch.no_grad():
            module.eval()(*example_inputs, **example_keywords)
    finally:
        for hook in hooks:
            hook.remove()
        for m, mode in training.items():
            m.training = mode
    if not seen:
        raise ValueError("prepack: the example input reaches no ConvTranspose layer of torch_ext.nn")
    for layer, (size, channels_last) in seen.items():
        layer.requires_grad_(False)
        layer._prepack(size, channels_last)
    return module
