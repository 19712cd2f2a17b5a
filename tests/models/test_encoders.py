"""How observations of every kind become features."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec
from rlinf_async.models.encoders import (
    ChoiceEncoder,
    ImageEncoder,
    NumberEncoder,
    ObservationEncoder,
    TextEncoder,
)
from rlinf_async.models.observations import image_layout, kind_of


def spec(shape, dtype="uint8", name="image", **ranges):
    return ArraySpec(name=name, shape=shape, dtype=dtype, **ranges)


def bytes_of(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8))


def encoder_of(*specs, text=None):
    torch.manual_seed(0)
    return ObservationEncoder(specs, text=text, embedding=5, image_channels=4, image_features=6)


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        (spec((64, 64, 3)), "image"),
        (spec((3, 64, 64)), "image"),
        (spec((3, 64, 64, 3)), "image"),
        (spec((64, 64)), "image"),
        (spec((4, 84, 84)), "image"),
        (spec((64, 64, 3), "float32"), "image"),
        (spec((64, 64), "float32"), "numbers"),
        (spec((4, 17), "float32"), "numbers"),
        (spec((4, 17)), "numbers"),
        (spec((2, 3, 4), "float32"), "numbers"),
        (spec((20,)), "text"),
        (spec((), "int64", counts=(5,)), "choices"),
        (spec((), "int64"), "numbers"),
        (spec((), "int64", counts=(10**6,)), "numbers"),
        (spec((3,), "int8", counts=(2, 2, 2)), "choices"),
        (spec((3,), "bool"), "numbers"),
    ],
)
def test_a_declaration_decides_how_an_observation_is_read(declared, kind):
    assert kind_of(declared, None) == kind


def test_bytes_are_numbers_where_the_texts_are_named():
    assert kind_of(spec((128,), name="ram"), ("task",)) == "numbers"
    assert kind_of(spec((128,), name="task"), ("task",)) == "text"


@pytest.mark.parametrize("side", [8, 9, 12, 16, 31, 32, 48, 64, 84, 96, 128, 224, 256])
def test_layers_fit_images_of_every_size(side):
    layout = image_layout(spec((side, side + 3, 3)))
    rows, columns = layout.output(layout.convolutions(32))
    assert 1 <= rows <= columns <= 9


def test_layers_of_84_pixels_are_those_of_mnih():
    layers = image_layout(spec((84, 84, 4))).convolutions(32)
    assert [(each.channels, each.kernel, each.stride) for each in layers] == [
        (32, 8, 4),
        (64, 4, 2),
        (64, 3, 1),
    ]


@pytest.mark.parametrize("shape", [(7, 64, 3), (3, 64, 7), (2, 2, 3)])
def test_an_image_that_is_too_small_is_refused(shape):
    with pytest.raises(BadInput, match="too small for a convolutional encoder"):
        image_layout(spec(shape))


def test_both_channel_orders_and_stacks_of_frames_see_the_same_image():
    frames = bytes_of(5, 2, 20, 24, 3)  # [N, frames, H, W, channels]
    layouts = {
        (20, 24, 6): frames.movedim(1, 3).flatten(3),
        (6, 20, 24): frames.movedim(4, 2).flatten(1, 2),
        (2, 20, 24, 3): frames,
        (2, 3, 20, 24): frames.movedim(4, 2),
    }
    torch.manual_seed(0)
    first = ImageEncoder(spec((20, 24, 6)), channels=4, features=6)
    expected = first(layouts[20, 24, 6])
    assert expected.std() > 0
    for shape, rows in layouts.items():
        encoder = ImageEncoder(spec(shape), channels=4, features=6)
        encoder.load_state_dict(first.state_dict())
        torch.testing.assert_close(encoder(rows), expected)
    wide = ImageEncoder(spec((20, 24, 6), "float32"), channels=4, features=6)
    wide.load_state_dict(first.state_dict())
    torch.testing.assert_close(wide(layouts[20, 24, 6].float() / 255.0), expected)


def test_a_grey_image_needs_no_channel_axis():
    torch.manual_seed(0)
    flat = ImageEncoder(spec((20, 24)), channels=4, features=6)
    deep = ImageEncoder(spec((20, 24, 1)), channels=4, features=6)
    deep.load_state_dict(flat.state_dict())
    rows = bytes_of(3, 20, 24)
    torch.testing.assert_close(flat(rows), deep(rows.unsqueeze(-1)))


def test_choices_are_embedded_each_from_its_own_start():
    declared = spec((2,), "int64", counts=(3, 4), starts=(-1, 10))
    encoder = ChoiceEncoder(declared, width=5)
    rows = torch.tensor([[-1, 10], [1, 13]])
    expected = [encoder.table.weight[[0, 3]].flatten(), encoder.table.weight[[2, 6]].flatten()]
    assert torch.equal(encoder(rows), torch.stack(expected))
    assert encoder.features == 10


def test_a_single_choice_needs_no_axis_and_bits_stay_bits():
    choice = ChoiceEncoder(spec((), "int64", counts=(4,)), width=5)
    assert choice(torch.tensor([0, 3, 1])).shape == (3, 5)
    bits = ChoiceEncoder(spec((2, 2), "int8", counts=(2,) * 4), width=5)
    rows = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int8)
    assert bits(rows).tolist() == [[0.0, 1.0, 1.0, 1.0]]
    assert not list(bits.parameters())


def test_a_text_is_the_mean_of_its_bytes_and_an_empty_one_nothing():
    encoder = TextEncoder(width=5)
    rows = torch.zeros(3, 6, dtype=torch.uint8)
    rows[0, :2] = torch.tensor([104, 105], dtype=torch.uint8)
    rows[1, :4] = torch.tensor([104, 104, 105, 105], dtype=torch.uint8)
    weight = encoder.table.weight
    expected = torch.stack([weight[[104, 105]].mean(dim=0)] * 2 + [torch.zeros(5)])
    torch.testing.assert_close(encoder(rows), expected)
    encoder(rows).sum().backward()
    assert (weight.grad[0] == 0).all()
    assert (weight.grad[104] != 0).all()


def test_numbers_are_flattened_and_integers_compressed():
    floats = NumberEncoder(spec((2, 2), "float32"))
    assert floats(torch.arange(4.0).reshape(1, 2, 2)).tolist() == [[0.0, 1.0, 2.0, 3.0]]
    integers = NumberEncoder(spec((), "int64"))
    seen = integers(torch.tensor([-1, 0, 1000]))
    torch.testing.assert_close(seen, torch.tensor([[-math.log(2)], [0.0], [math.log(1001)]]))


def test_named_observations_lie_side_by_side_in_their_declared_order():
    encoder = encoder_of(
        spec((3,), "float32", "arm/state"),
        spec((16, 16, 3), "uint8", "image"),
        spec((), "int64", "task", counts=(4,)),
        spec((9,), "uint8", "instruction"),
    )
    rows = {
        "instruction": bytes_of(2, 9),
        "image": bytes_of(2, 16, 16, 3),
        "task": torch.tensor([1, 3]),
        "arm/state": torch.randn(2, 3),
    }
    features = encoder(rows)
    assert features.shape == (2, encoder.features) == (2, 3 + 6 + 5 + 5)
    assert torch.equal(features[:, :3], rows["arm/state"])
    for at, name in (
        (slice(3, 9), "image"),
        (slice(9, 14), "task"),
        (slice(14, 19), "instruction"),
    ):
        changed = encoder({**rows, name: rows[name].flip(0)})
        assert torch.equal(changed[:, at], features[:, at].flip(0))
        changed[:, at] = features[:, at]
        assert torch.equal(changed, features)


def test_layers_are_orthogonal_and_without_bias_at_first():
    encoder = encoder_of(spec((16, 16, 3)))
    weights = [(n, p) for n, p in encoder.named_parameters() if p.ndim > 1]
    assert len(weights) == 3
    for _, weight in weights:
        rows = weight.detach().flatten(1)
        rows = rows if len(rows) <= rows.shape[1] else rows.T
        torch.testing.assert_close(rows @ rows.T, 2.0 * torch.eye(len(rows)), atol=1e-4, rtol=0)
    assert all((p == 0).all() for p in encoder.parameters() if p.ndim == 1)
