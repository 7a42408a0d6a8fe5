"""Weights packed ahead give the same results, and no stale result survives what torch's own modules survive."""

import copy
import io

import pytest
import torch

import torch_ext

LAYERS = {
    # Positions enough that no processor multiplies with weights as they lie, of one sample either.
    "gather": (lambda: torch_ext.nn.ConvTranspose2d(33, 60, 3, 2, 1, output_padding=1, groups=3), (2, 33, 10, 14)),
    "winograd": (lambda: torch_ext.nn.ConvTranspose2d(64, 32, 4, 2, 1), (8, 64, 16, 16)),
    "fold": (lambda: torch_ext.nn.ConvTranspose1d(20, 1, 64, 32), (1, 20, 30)),
    "3d": (lambda: torch_ext.nn.ConvTranspose3d(17, 20, 2, 2), (1, 17, 3, 4, 5)),
    "few positions": (lambda: torch_ext.nn.ConvTranspose2d(64, 64, 4, 2, 1), (1, 64, 1, 1)),
    "nothing to pack": (lambda: torch_ext.nn.ConvTranspose2d(64, 1, 4, 2, 1), (1, 64, 5, 5)),
}


def packed_layer(name, **to):
    torch.manual_seed(0)
    make, size = LAYERS[name]
    plain = make().to(**to)
    input = torch.randn(size, **to)
    packed = torch_ext.prepack(copy.deepcopy(plain), input)
    assert (packed.packed is None) == (name == "nothing to pack")
    return plain, packed, input


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_same_results(name, dtype):
    plain, packed, input = packed_layer(name, dtype=dtype)
    if name == "few positions":  # otherwise multiplied with weights as they lie, in another order
        with torch.no_grad():
            return torch.testing.assert_close(packed(input), plain(input))
    with torch.no_grad():
        assert torch.equal(packed(input), plain(input))
        assert torch.equal(packed(input[:1]), plain(input[:1]))  # another size
        channels_last = input.transpose(1, -1).contiguous().transpose(1, -1)  # another layout
        assert torch.equal(packed(channels_last), plain(channels_last))


def test_packed_bytes_are_what_is_read():
    plain, packed, input = packed_layer("gather")
    packed.packed[64 + 64 + 100 * 4 :] = 0  # past the headers: some weights
    with torch.no_grad():
        assert not torch.equal(packed(input), plain(input))
    packed.packed[0] ^= 1  # another fingerprint: as from another processor
    with torch.no_grad():
        assert torch.equal(packed(input), plain(input))


def test_packing_is_deterministic():
    _, packed, input = packed_layer("winograd")
    assert torch.equal(torch_ext.prepack(copy.deepcopy(packed), input).packed, packed.packed)


def test_nan_in_the_weights_stays_where_it_is_read():
    plain, packed, input = packed_layer("winograd")
    with torch.no_grad():
        plain.weight[3, 5, 1, 2] = float("nan")
    packed = torch_ext.prepack(copy.deepcopy(plain), input)
    with torch.no_grad():
        torch.testing.assert_close(packed(input), plain(input), rtol=0, atol=0, equal_nan=True)
        assert packed(input).isfinite().any()


def test_state_dict_is_the_same_and_loading_packs_again():
    plain, packed, input = packed_layer("gather")
    assert list(packed.state_dict()) == list(plain.state_dict()) == list(torch.nn.ConvTranspose2d(33, 60, 3, groups=3).state_dict())
    other, _, _ = LAYERS["gather"][0](), None, None
    packed.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert torch.equal(packed(input), other(input))


def test_to_another_type_packs_again():
    plain, packed, input = packed_layer("gather")
    before = packed.packed
    plain, packed, input = plain.double(), packed.double(), input.double()
    assert packed.packed is not None and packed.packed.numel() > before.numel()
    with torch.no_grad():
        assert torch.equal(packed(input), plain(input))
    assert packed.to("meta").packed is None


def test_copies_and_pickles():
    plain, packed, input = packed_layer("winograd")
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    for other in copy.deepcopy(packed), torch.load(file, weights_only=False):
        assert other.packed is not None and torch.equal(other.packed, packed.packed)
        with torch.no_grad():
            assert torch.equal(other(input), plain(input))


def test_a_model_keeps_its_modes():
    model = torch.nn.Sequential(torch_ext.nn.ConvTranspose2d(8, 32, 4, 2, 1), torch.nn.BatchNorm2d(32), torch_ext.nn.ConvTranspose2d(32, 16, 2, 2))
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert torch_ext.prepack(model, torch.randn(2, 8, 6, 6)) is model
    assert model.training and not model[1].training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model[0].packed is not None and model[2].packed is not None
    assert not model[0].weight.requires_grad and model[1].weight.requires_grad


def test_torchscript():
    plain, packed, input = packed_layer("gather")
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(packed), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    assert "conv_transpose_prepacked" in str(loaded.inlined_graph)
    with torch.no_grad():
        assert torch.equal(loaded(input), plain(input))
        assert torch.equal(torch.jit.trace(packed, input)(input), plain(input))


def test_export_and_compile():
    plain, packed, input = packed_layer("gather")
    program = torch.export.export(packed, (input,))
    assert "prepacked" in str(program.graph)
    with torch.no_grad():
        assert torch.equal(program.module()(input), plain(input))
        assert torch.equal(torch.compile(packed, backend="aot_eager", fullgraph=True)(input), plain(input))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(input), plain(input).detach())


def test_gradients_autocast_and_vmap_are_those_of_the_plain_layer():
    plain, packed, input = packed_layer("gather")
    for layer in plain, packed:
        layer.requires_grad_()
    inputs = [input.clone().requires_grad_() for _ in range(2)]
    plain(inputs[0]).square().sum().backward()
    packed(inputs[1]).square().sum().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert torch.equal(plain.weight.grad, packed.weight.grad) and torch.equal(plain.bias.grad, packed.bias.grad)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert packed(input).dtype == torch.bfloat16
        assert torch.equal(packed(input), plain(input))
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(packed)(input), plain(input))


def test_operators():
    plain, packed, input = packed_layer("gather")
    attributes = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], output_padding=[1, 1], groups=3,
                      data_format="NCX", weights_format="IOX")  # fmt: skip
    weight, bias = plain.weight.detach(), plain.bias.detach()
    bytes = torch.ops.torch_ext.conv_transpose_prepack(input, weight, **attributes)
    assert torch.equal(bytes, packed.packed)
    torch.library.opcheck(torch.ops.torch_ext.conv_transpose_prepacked.default, (input, weight, bytes, bias), attributes)
    with pytest.raises(RuntimeError, match="strides"):
        torch.ops.torch_ext.conv_transpose_prepack(input, weight, **{**attributes, "strides": [0, 2]})


def test_what_holds_no_layer_is_refused():
    with pytest.raises(ValueError, match="Linear holds no ConvTranspose layer"):
        torch_ext.prepack(torch.nn.Linear(2, 2), torch.ones(1, 2))
