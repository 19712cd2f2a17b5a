"""The actor's and the critic's MLP in numpy: forward and analytic backward, nothing allocated.

Axes: N observations, A outputs of the actor, H units of a layer. For the small nets of continuous
control the cost of a framework is its dispatch, so every array, and every view that a step needs,
is made once for each N. Layout of parameters: see `rlinf_async.models.policies`.

Each layer's activations are [nets, N, H + 1] with a last column of ones, so that biases and their
gradients come out of the matrix products. Element-wise passes run over that column too (one long
contiguous loop is faster than many of H): it is set back to one after the activation, and its
derivative is multiplied into a column of zeros.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlinf_async.models.policies import BuiltinPolicy

Float32 = NDArray[np.float32]

SMALL_PRODUCT = 1_000_000
"""OpenBLAS multiplies without packing up to this many multiply-adds, which is 1.2 to 2 times as
fast (interface/gemm.c, sgemm_small_matrix_permit for AVX-512); longer products are cut to fit."""
SHORTEST_CUT = 64
"""Rows below which cutting costs more in calls than it saves."""

ACTOR, CRITIC, BOTH = slice(0, 1), slice(1, 2), slice(0, 2)


def aligned(*shape: int, fill: float = 0.0) -> Float32:
    """A float32 array that begins on a cache line: AVX-512 loops are up to twice as fast on it."""
    size = math.prod(shape)
    raw = np.full(size + 16, fill, dtype=np.float32)
    start = (-raw.ctypes.data % 64) // 4
    return raw[start : start + size].reshape(shape)


class MlpPair:
    """Parameters, and their gradient, of one actor and one critic.

    `parameters` and `gradient` are flat [P] float32 and live as long as the pair: write new
    parameters into the array. Passes over N observations are made by `open`.
    """

    def __init__(self, policy: BuiltinPolicy) -> None:
        from rlinf_async.models.policies import parameter_views

        self.policy = policy
        self.sizes = (policy.observation_size, *policy.hidden)
        self.outputs = policy.output_size
        count = sum(math.prod(shape) for shape in policy.parameter_shapes().values())
        self.parameters = aligned(count)
        self.gradient = aligned(count)
        self.weights = parameter_views(policy, self.parameters)
        self.gradients = parameter_views(policy, self.gradient)

    def open(self, rows: int, nets: slice = BOTH) -> Pass:
        """Buffers and views for calls of exactly `rows` observations through the chosen nets."""
        return Pass(self, rows, nets)


class Pass:
    """One shape of call: fill `x[:, :-1]`, then `forward`, then perhaps `backward`.

    x        [N, D + 1], last column ones; the caller writes normalised observations
    output   [A, N], the actor's output (not with CRITIC)
    value    [N], the critic's output (not with ACTOR)

    The arrays are overwritten by the next call. The same rows give the same bits in every process
    of one machine: each product's shape, and so its order of additions, depends on N alone.
    """

    def __init__(self, pair: MlpPair, rows: int, nets: slice) -> None:
        self.x = aligned(rows, pair.sizes[0] + 1, fill=1.0)
        self.output = aligned(pair.outputs, rows)
        self.value = aligned(rows)
        self._activate = np.tanh if pair.policy.activation == "tanh" else _relu
        self._layers = self._forward_layers(pair, rows, nets)
        self._heads = self._forward_heads(pair, nets)

    def _forward_layers(self, pair: MlpPair, rows: int, nets: slice) -> list[_Layer]:
        count = nets.stop - nets.start
        layers: list[_Layer] = []
        below: Float32 = self.x[None]
        for index, (inputs, units) in enumerate(zip(pair.sizes, pair.sizes[1:], strict=False)):
            full = aligned(count, rows, units + 1, fill=1.0)
            cuts = _cuts(rows, inputs + 1, units)
            weight = pair.weights[f"hidden.{index}"][nets][:, None]
            weight = weight if cuts > 1 else _drop(weight)
            layers.append(_Layer(_cut(below, cuts), weight, full, cuts))
            below = full
        return layers

    def _forward_heads(self, pair: MlpPair, nets: slice) -> list[tuple[Float32, Float32, Float32]]:
        top = self._layers[-1].full
        heads = []
        if nets.start == 0:
            heads.append((pair.weights["actor"].T, top[0].T, self.output))
        if nets.stop == 2:
            heads.append((pair.weights["critic"].T, top[-1].T, self.value[None]))
        return heads

    def forward(self) -> None:
        """From `x` to `output` and `value`."""
        activate = self._activate
        for layer in self._layers:
            np.matmul(layer.below, layer.weight, out=layer.product)
            activate(layer.full, out=layer.full)
            layer.ones.fill(1.0)
        for weight, top, out in self._heads:
            np.matmul(weight, top, out=out)


class _Layer:
    """Views of one hidden layer's forward step."""

    __slots__ = ("below", "full", "ones", "product", "weight")

    def __init__(self, below: Float32, weight: Float32, full: Float32, cuts: int) -> None:
        self.below, self.weight, self.full = below, weight, full
        self.product = _cut(full, cuts)[..., :-1]
        self.ones = full[..., -1]


class TrainPass(Pass):
    """A pass through both nets that can also go backward.

    After `forward` write the loss's derivatives into `d_output` [A, N] and `d_value` [N];
    `backward` then overwrites every part of `pair.gradient` but `log_std`.
    """

    def __init__(self, pair: MlpPair, rows: int) -> None:
        super().__init__(pair, rows, BOTH)
        fulls = [layer.full for layer in self._layers]
        deltas = [aligned(*full.shape) for full in fulls]
        top, delta = fulls[-1], deltas[-1]
        self._tops = [_Top(pair, net, top[net], delta[net]) for net in range(2)]
        self.d_output, self.d_value = self._tops[0].slope, self._tops[1].slope[0]
        derive = _derive_tanh if pair.policy.activation == "tanh" else _derive_relu
        self._steps = [
            (derive, fulls[index], aligned(*fulls[index].shape), deltas[index])
            for index in range(len(fulls))
        ]
        self._downs = [
            _Down(pair, index, fulls[index - 1], deltas[index], deltas[index - 1])
            for index in range(1, len(fulls))
        ]
        self._first = (self.x.T, deltas[0][..., :-1], pair.gradients["hidden.0"])

    def backward(self) -> None:
        """From `d_output` and `d_value` to `pair.gradient`."""
        for top in self._tops:
            top.run()
        for index in range(len(self._downs), 0, -1):
            derive, full, scratch, delta = self._steps[index]
            derive(full, scratch, delta)
            self._downs[index - 1].run()
        derive, full, scratch, delta = self._steps[0]
        derive(full, scratch, delta)
        x_T, delta, gradient = self._first
        np.matmul(x_T, delta, out=gradient)


class _Top:
    """The backward step through one net's output layer."""

    def __init__(self, pair: MlpPair, net: int, top: Float32, delta: Float32) -> None:
        name = ("actor", "critic")[net]
        weight = pair.weights[name]
        inputs, outputs = weight.shape[0] - 1, weight.shape[1]
        # A product over a single output takes eight times as long as one over two, so one output
        # gets a second one that is zero.
        padded = aligned(max(outputs, 2), len(top))
        self._copy = aligned(max(outputs, 2), inputs)
        self.slope: Float32 = padded[:outputs]
        self._weight, self._weight_copy = weight[:-1].T, self._copy[:outputs]
        self._slope_T, self._padded_T, self._top_T = self.slope.T, padded.T, top.T
        self._gradient, self._delta = pair.gradients[name], delta[:, :-1]

    def run(self) -> None:
        """The weights' gradient, and the derivative by the outputs of the last hidden layer."""
        np.matmul(self._top_T, self._slope_T, out=self._gradient)
        np.copyto(self._weight_copy, self._weight)
        np.matmul(self._padded_T, self._copy, out=self._delta)


class _Down:
    """The backward step through the weights between two hidden layers."""

    def __init__(
        self, pair: MlpPair, index: int, below: Float32, delta: Float32, delta_below: Float32
    ) -> None:
        rows = below.shape[1]
        inputs, units = pair.sizes[index], pair.sizes[index + 1]
        cuts = _cuts(rows, inputs + 1, units)
        self._gradient = pair.gradients[f"hidden.{index}"]
        # The sum over all rows is the sum of the cuts' sums.
        self._parts = aligned(2, cuts, inputs + 1, units)
        self._product = _drop(self._parts) if cuts > 1 else self._gradient
        self._below_T = _cut(below, cuts).swapaxes(-1, -2)
        self._delta = _cut(delta, cuts)[..., :-1]
        self._delta_below = _cut(delta_below, cuts)[..., :-1]
        # A product with a transposed copy is faster, copy included, than with a transposed view.
        self._weight_T = pair.weights[f"hidden.{index}"][:, :-1].swapaxes(1, 2)
        self._copy_T = aligned(2, units, inputs)
        self._copy_cut = _drop(self._copy_T[:, None]) if cuts == 1 else self._copy_T[:, None]
        self._cuts = cuts

    def run(self) -> None:
        """The weights' gradient, and the derivative by the outputs of the layer below."""
        np.matmul(self._below_T, self._delta, out=self._product)
        if self._cuts > 1:
            np.add.reduce(self._parts, axis=1, out=self._gradient)
        np.copyto(self._copy_T, self._weight_T)
        np.matmul(self._delta, self._copy_cut, out=self._delta_below)


def _relu(x: Float32, out: Float32) -> Float32:
    return np.maximum(x, np.float32(0.0), out=out)


def _derive_tanh(full: Float32, scratch: Float32, delta: Float32) -> None:
    """delta *= 1 - full^2."""
    np.multiply(full, full, out=scratch)
    np.subtract(_ONE, scratch, out=scratch)
    np.multiply(delta, scratch, out=delta)


def _derive_relu(full: Float32, scratch: Float32, delta: Float32) -> None:
    """delta *= 1 where the unit is active; at exactly 0 the derivative is 0, as in torch."""
    np.sign(full, out=scratch)
    np.multiply(delta, scratch, out=delta)


_ONE = np.float32(1.0)


def _cuts(rows: int, inputs: int, units: int) -> int:
    """Into how many equal row ranges a product is cut; 1 where cutting does not pay."""
    for cuts in range(1, rows // SHORTEST_CUT + 1):
        if rows % cuts == 0 and rows // cuts * inputs * units <= SMALL_PRODUCT:
            return cuts
    return 1


def _cut(array: Float32, cuts: int) -> Float32:
    """[nets, N, H] as [nets, cuts, N / cuts, H], a view; uncut, without axes of length 1 in front.

    A cut array keeps them: weights are [nets, 1, ...] then, and must not be taken for cuts.
    """
    nets, rows, width = array.shape
    cut = array.reshape(nets, cuts, rows // cuts, width)
    return cut if cuts > 1 else _drop(cut)


def _drop(array: Float32) -> Float32:
    """[nets, cuts, ...] without those of the two axes that have length 1."""
    return array.squeeze(axis=tuple(axis for axis in (0, 1) if array.shape[axis] == 1))
