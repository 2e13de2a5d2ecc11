"""The matmuls of a decoding step on a GPU: fused kernels against cuBLAS with small kernels, microseconds a layer.

    python -m benchmarks.gpu_matmul                       errors against float64, then the table of the rule
    python -m benchmarks.gpu_matmul --try-others FILE     also every tile near the rule's, in the rule's place

A chain is what a layer computes without its attention: norm and queries, keys, values; output and residual; norm, gate
and up; down and residual. It is captured as one CUDA graph of many layers, each with weights of its own, so that these
come from the memory and not from a cache. A tile is judged within the chain: alone it may look better than it is.

Shape legend: B rows, D hidden size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from assay.llama.kernels import matmul
from assay.llama.kernels.matmul_tiles import Tile, gated_tile, normed_tile, residual_tile

ROWS = (16, 32, 64, 128, 256, 512, 1024)
LAYERS = 24  # the smallest of the shapes has 170 MB of weights then, several times what the cache holds
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    hidden: int
    heads: int  # width of all heads of queries
    query_key_value: int
    intermediate: int

    @property
    def matmuls(self) -> dict[str, tuple[int, int]]:
        """name -> (outputs, inputs) of its weight."""
        return {
            "query_key_value": (self.query_key_value, self.hidden),
            "output": (self.hidden, self.heads),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


SHAPES = (
    Shape("135M", 576, 576, 960, 1536),
    Shape("0.5B", 896, 896, 1152, 4864),
    Shape("1.5B", 1536, 1536, 2048, 8960),
)
Choice = Mapping[str, Tile | None]  # by name of the matmul; None: cuBLAS


class Layers:
    """Random weights and the tensors that a step of `rows` rows works on."""

    def __init__(self, shape: Shape, rows: int, dtype: torch.dtype, count: int = LAYERS) -> None:
        def drawn(*size: int) -> Tensor:
            return torch.randn(*size, device="cuda", dtype=dtype)

        self.shape, self.count = shape, count
        self.norm_D = 1 + drawn(shape.hidden) / 8
        self.states_BD = drawn(rows, shape.hidden)
        self.inputs = {"output": drawn(rows, shape.heads), "down": drawn(rows, shape.intermediate) / 4}
        self.outputs = {
            "query_key_value": drawn(rows, shape.query_key_value),
            "gate_up": drawn(rows, shape.intermediate),
        }
        self.weights = {
            name: [drawn(outputs, inputs) * 0.02 for _ in range(count)]
            for name, (outputs, inputs) in shape.matmuls.items()
        }
        self.room = matmul.Room.make(rows, shape.hidden, 2 * shape.intermediate, dtype, torch.device("cuda"))

    def begin(self) -> matmul.Stream:
        return matmul.begin(self.states_BD, self.norm_D, EPSILON, self.room)

    def compute(self, name: str, layer: int, stream: matmul.Stream, tile: Tile | None) -> matmul.Stream:
        weight = self.weights[name][layer]
        if name in self.inputs:
            arguments = (self.inputs[name], weight, None, stream, self.norm_D)
            return matmul.plain_residual(*arguments) if tile is None else matmul.fused_residual(*arguments, tile)
        out, gated = self.outputs[name], name == "gate_up"
        if tile is not None:
            matmul.fused_normed(stream, weight, None, out, tile, gated)
        else:
            matmul.plain_normed(stream, weight, None, out, gated)
        return stream

    def exact(self, name: str, states_BD: Tensor) -> Tensor:
        """What `compute` gives with the first layer's weights, in float64."""
        weight, states_BD = self.weights[name][0].double(), states_BD.double()
        if name in self.inputs:
            return states_BD + self.inputs[name].double() @ weight.t()
        scale_B1 = torch.rsqrt(states_BD.square().mean(1, keepdim=True) + EPSILON)
        out = (states_BD * scale_B1 * self.norm_D.double()) @ weight.t()
        if name != "gate_up":
            return out
        gate, up = out.chunk(2, dim=1)
        return silu(gate) * up

    def chain(self, choice: Choice) -> None:
        stream = self.begin()
        for layer in range(self.count):
            for name in self.shape.matmuls:
                stream = self.compute(name, layer, stream, choice[name])

    def microseconds(self, choice: Choice, repeats: int = 7) -> float:
        """Of a layer, within a captured graph; the median of some replays."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            self.chain(choice)  # compiles what is not compiled yet
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self.chain(choice)
        times = []
        graph.replay()
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) * 1000 / self.count)
        return statistics.median(times)


def rule(shape: Shape, rows: int) -> Choice:
    kinds = {"query_key_value": normed_tile, "output": residual_tile, "gate_up": gated_tile, "down": residual_tile}
    return {
        name: kinds[name](rows, inputs, outputs, torch.bfloat16) for name, (outputs, inputs) in shape.matmuls.items()
    }


def worst_error(shape: Shape, rows: int, choice: Choice, dtype: torch.dtype) -> float:
    """Of the four matmuls against float64, relative to the length of a row; infinite if two runs differ in a bit."""
    layers = Layers(shape, rows, dtype, count=1)
    worst = 0.0
    for name in shape.matmuls:
        before_BD = torch.randn_like(layers.states_BD)
        out = layers.outputs.get(name, layers.states_BD)
        runs = []
        for _ in range(3):
            out.fill_(torch.nan)
            layers.states_BD.copy_(before_BD)
            layers.compute(name, 0, layers.begin(), choice[name])
            runs.append(out.clone())
        if not all(torch.equal(run, runs[0]) for run in runs):
            return float("inf")
        expected = layers.exact(name, before_BD)
        worst = max(worst, ((runs[0].double() - expected).norm(dim=1) / expected.norm(dim=1)).max().item())
    return worst


def others(name: str, tile: Tile | None) -> list[Tile | None]:
    """Near a tile: twice or half as many rows, outputs, inputs or splits; and cuBLAS."""
    near = tile or Tile(64, 64, 64, stages=5)
    found = [] if tile else [near]
    for field, least in (("rows", 16), ("outputs", 16 if name == "gate_up" else 32), ("inputs", 64), ("splits", 1)):
        for value in (getattr(near, field) // 2, getattr(near, field) * 2):
            if value < least or (field == "splits" and name not in ("output", "down")):
                continue
            changed = replace(near, **{field: value})
            fetched = changed.rows + changed.outputs * (2 if name == "gate_up" else 1)
            if fetched * changed.inputs * 2 * changed.stages <= 200_000 and fetched <= 256:
                found.append(changed)
    return [*found, None] if tile else list(found)


def compile_some(work: list[tuple[str, Shape, Tile]]) -> None:
    """In a process of its own, so that many compile at a time; the cache on the disk has the kernels then."""
    for shape in SHAPES:
        mine = [(name, tile) for name, of, tile in work if of == shape]
        layers = Layers(shape, 128, torch.bfloat16, count=1)
        for name, tile in mine:
            layers.compute(name, 0, layers.begin(), tile)
    torch.cuda.synchronize()


def compile_all() -> None:
    needed = {
        (name, shape, tile)
        for shape, rows in itertools.product(SHAPES, ROWS)
        for name, chosen in rule(shape, rows).items()
        for tile in (chosen, *others(name, chosen))
        if tile is not None
    }
    work, processes = sorted(needed, key=str), os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(compile_some, [work[number::processes] for number in range(processes)], chunksize=1)


def try_others(layers: Layers, choice: Choice, now: float) -> dict[str, list[dict[str, Any]]]:
    """By matmul: what the chain would take with another tile (None: cuBLAS), the fastest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in choice:
        times = [(layers.microseconds({**choice, name: tile}), tile) for tile in others(name, choice[name])]
        times.append((now, choice[name]))
        found[name] = [
            {"microseconds": time, "tile": tile and asdict(tile)}
            for time, tile in sorted(times, key=lambda item: item[0])
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try-others", type=Path, metavar="FILE")
    file: Path | None = parser.parse_args().try_others
    torch.manual_seed(0)
    plain: Choice = dict.fromkeys(SHAPES[0].matmuls)
    small = {name: Tile(32, 32, 32, splits=3 if name in ("output", "down") else 1) for name in plain}
    for dtype, (title, choice) in itertools.product(
        (torch.bfloat16, torch.float32), (("cuBLAS", plain), ("fused", small))
    ):
        print(f"{title}, {dtype}: error {worst_error(SHAPES[0], 100, choice, dtype):.1e}", flush=True)
    if file:
        compile_all()
    found = []
    for shape, rows in itertools.product(SHAPES, ROWS):
        layers, choice = Layers(shape, rows, torch.bfloat16), rule(shape, rows)
        error = worst_error(shape, rows, choice, torch.bfloat16)
        cublas, chosen = layers.microseconds(plain), layers.microseconds(choice)
        fused = "".join("-" if tile is None else "F" for tile in choice.values())
        print(
            f"{shape.name:5} {rows:5} cuBLAS {cublas:6.1f} us  {fused} {chosen:6.1f} us  error {error:.1e}", flush=True
        )
        if file:
            found.append({"shape": shape.name, "rows": rows, "others": try_others(layers, choice, chosen)})
            file.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("python -m benchmarks.gpu_matmul needs a GPU, and torch sees none")
    main()
