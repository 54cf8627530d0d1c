"""The algorithms of kernels/gdn_tree on numbers that count their operations: what roofline.py has to agree with."""

import math
import random

import torch

from tfm_bench.measure.kernel_problems import LayerShapes

SHAPES = LayerShapes(heads=2, value_heads=4, key_dim=3, value_dim=2, layers=1)
PARENTS = {
    "anchor": [-1],
    "chain": [-1, 0, 1, 2, 3],
    "star": [-1, 0, 0, 0, 0],
    "mixed": [-1, 0, 0, 1, 1, 3, 2],
}
OPERATIONS = [0]


class Counted:
    """A number that notes every multiplication and addition it takes part in."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, other: "Counted") -> "Counted":
        OPERATIONS[0] += 1
        return Counted(self.value * other.value)

    def __add__(self, other: "Counted") -> "Counted":
        OPERATIONS[0] += 1
        return Counted(self.value + other.value)

    def __sub__(self, other: "Counted") -> "Counted":
        OPERATIONS[0] += 1
        return Counted(self.value - other.value)

    def exp(self) -> "Counted":
        return Counted(math.exp(self.value))


Vector = list[Counted]


def dot(left: Vector, right: Vector) -> Counted:
    total = Counted(0.0)
    for a, b in zip(left, right, strict=True):
        total = total + a * b
    return total


def numbers(*size: int, scale: float = 1.0):
    if not size:
        return Counted(random.uniform(-1, 1) * scale)
    return [numbers(*size[1:], scale=scale) for _ in range(size[0])]


class Layer:
    """Inputs of one sequence as nested lists, node first; states by value head and key row."""

    def __init__(self, parents: list[int]) -> None:
        random.seed(len(parents))
        self.parents, nodes = parents, len(parents)
        self.q, self.k = (numbers(nodes, SHAPES.heads, SHAPES.key_dim) for _ in range(2))
        self.v = numbers(nodes, SHAPES.value_heads, SHAPES.value_dim)
        self.g, self.beta = (numbers(nodes, SHAPES.value_heads, scale=0.5) for _ in range(2))
        self.state = numbers(SHAPES.value_heads, SHAPES.key_dim, SHAPES.value_dim)
        self.scale = Counted(SHAPES.key_dim**-0.5)

    def scaled_queries(self):
        return [[[x * self.scale for x in head] for head in node] for node in self.q]

    def ancestors(self, node: int) -> list[int]:
        """Strict ones, nearest first."""
        above = []
        while (node := self.parents[node]) >= 0:
            above.append(node)
        return above


def columns(matrix: list[Vector]) -> list[Vector]:
    return [list(column) for column in zip(*matrix, strict=True)]


def step(layer: Layer, state: list[Vector], node: int, head: int) -> tuple[list[Vector], Vector]:
    """One node of the recurrence on one value head: its state, and u."""
    key = layer.k[node][head // 2]
    decay = layer.g[node][head].exp()
    decayed = [[x * decay for x in row] for row in state]
    u = [
        (v - dot(column, key)) * layer.beta[node][head]
        for v, column in zip(layer.v[node][head], columns(decayed), strict=True)
    ]
    return [[x + k * y for x, y in zip(row, u, strict=True)] for row, k in zip(decayed, key, strict=True)], u


def recurrence(layer: Layer, nodes: list[int] | None = None) -> list[list[Vector]]:
    """Outputs by value head and node; `nodes` lists what is computed, in turn (a path per leaf repeats nodes)."""
    queries: dict[int, Vector] = {}
    outputs: list[list[Vector]] = [[[] for _ in layer.parents] for _ in range(SHAPES.value_heads)]
    for head in range(SHAPES.value_heads):
        states: dict[int, list[Vector]] = {-1: layer.state[head]}
        for node in nodes or range(len(layer.parents)):
            if head % 2 == 0:
                queries[node] = [x * layer.scale for x in layer.q[node][head // 2]]
            states[node], _ = step(layer, states[layer.parents[node]], node, head)
            outputs[head][node] = [dot(column, queries[node]) for column in columns(states[node])]
    return outputs


def solve(layer: Layer) -> list[list[Vector]]:
    """The closed form on pairs of a node and its ancestors, Gram once per key head."""
    nodes, queries = range(len(layer.parents)), layer.scaled_queries()
    outputs = []
    for head in range(SHAPES.value_heads):
        if head % 2 == 0:
            keys, scaled = [node[head // 2] for node in layer.k], [node[head // 2] for node in queries]
            kk = {(i, j): dot(keys[i], keys[j]) for i in nodes for j in layer.ancestors(i)}
            qk = {(i, j): dot(scaled[i], keys[j]) for i in nodes for j in [i, *layer.ancestors(i)]}
        g, beta, state = (
            [node[head] for node in layer.g],
            [node[head] for node in layer.beta],
            columns(layer.state[head]),
        )
        path_sums, us, outputs_of_head = [g[0]], [], []
        for i in nodes:
            if i:
                path_sums.append(path_sums[layer.parents[i]] + g[i])
            gap, weights = Counted(0.0), {}
            for below, j in zip([i, *layer.ancestors(i)], layer.ancestors(i), strict=False):
                gap = gap + g[below]
                weights[j] = gap.exp()
            decay = path_sums[i].exp()
            u = [
                (v - decay * dot(column, keys[i])) * beta[i] for v, column in zip(layer.v[i][head], state, strict=True)
            ]
            for j, weight in weights.items():
                a = weight * beta[i] * kk[i, j]
                u = [x - a * y for x, y in zip(u, us[j], strict=True)]
            us.append(u)
            output = [decay * dot(column, scaled[i]) for column in state]
            for j, weight in (weights | {i: None}).items():
                read = qk[i, j] if weight is None else weight * qk[i, j]
                output = [x + read * y for x, y in zip(output, us[j], strict=True)]
            outputs_of_head.append(output)
        outputs.append(outputs_of_head)
    return outputs


def counted(work) -> tuple[int, object]:
    OPERATIONS[0] = 0
    result = work()
    return OPERATIONS[0], result


def values(outputs) -> torch.Tensor:
    return torch.tensor([[[x.value for x in node] for node in head] for head in outputs], dtype=torch.float64)
