"""The memory plan: as many bytes as tensors really take, and what is refused."""

import copy

import pytest
import torch

from tests.tfm_bench.models.tiny_targets import library_model
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Stack
from tfm_bench.errors import UserError
from tfm_bench.models import memory_plan as plans
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.memory_plan import (
    StackConfigs,
    available_memory,
    memory_plan,
    plan_table,
    require_memory,
    total_bytes,
)
from tfm_bench.models.target import Target
from tfm_bench.random_stack import SIZES, drafter_config, random_stack, target_config
from tfm_bench.tree import TokenTree

BF16 = torch.bfloat16
CAPACITY = Capacity(length=100, width=70)


def lines_of(configs, **options):
    return {line.name: line for line in memory_plan(configs, BF16, CAPACITY, **options)}


def configs_of(shapes, layers):
    return StackConfigs(target_config(shapes, layers), drafter_config(shapes, layers), SIZES[shapes].weaver)


def size(*tensors):
    """Bytes of the storages behind the tensors, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


@pytest.fixture(scope="module")
def stack():
    return random_stack("tiny", layers=8, dtype=BF16, device=torch.device("cpu"))


@pytest.fixture
def lines():
    return lines_of(configs_of("tiny", 8))


def test_weights_are_counted_exactly(stack, lines):
    assert lines["target weights"].bytes == size(*stack.target.model.state_dict().values())
    assert lines["Weaver weights"].bytes == size(*stack.weaver.weaver.parameters())
    drafter = stack.drafter
    matrices = [
        matrix.weight for layer in drafter.layers for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    vectors = 2 * (5 * (2 * 64 + 2 * 16) + 2 * 64)  # norms, which the runtime keeps in fp32 instead
    assert lines["drafter weights"].bytes == size(drafter.fc.weight, *matrices) + vectors
    assert lines["drafter context projections"].bytes == size(drafter.context_kv.weight)


def test_tables_are_counted_exactly(stack, lines):
    tables = size(stack.weaver.token_table, stack.weaver.residual_head)
    assert stack.weaver.token_table.dtype is torch.float32
    assert lines_of(configs_of("tiny", 8), table_bytes=4)["Weaver tables"].bytes == tables
    assert lines["Weaver tables"].bytes == tables // 2


def test_states_are_counted_exactly(stack, lines):
    state = stack.target.new_state(CAPACITY.length, CAPACITY.width)
    assert lines["attention keys and values"].bytes == size(state.keys, state.values)
    assert lines["Gated-DeltaNet states"].bytes == size(state.recurrent)
    assert lines["convolution windows"].bytes == size(state.conv)
    context = stack.drafter.new_state(CAPACITY.length)
    tensors = (context.keys, context.values, *context.rotary, *context.window_masks.values())
    assert lines["drafter context"].bytes == size(*tensors)


@pytest.mark.parametrize("method", ["fused", "node_recurrent"])
def test_what_a_verification_keeps_is_not_estimated_too_low(stack, method):
    target = stack.target.with_gdn_verify(method)
    state, width = target.new_state(CAPACITY.length, CAPACITY.width), CAPACITY.width
    target.verify(state, TokenTree.chain([0] * width, [0.0] * width))
    kept = [value for layer in state.pending for value in (layer.inputs, layer.k, layer.v, layer.pseudo_values)]
    planned = lines_of(configs_of("tiny", 8), gdn_verify=method)["kept from verify to commit"].bytes
    assert size(*kept) <= planned <= 1.5 * size(*kept)
    assert all(layer.states is None for layer in state.pending)


def test_states_of_nodes_are_held_for_a_commit_that_reads_them_and_else_for_one_layer(stack):
    target = copy.copy(stack.target.with_gdn_verify("node_recurrent"))
    target.commit_name = "select"
    state, width = target.new_state(CAPACITY.length, CAPACITY.width), CAPACITY.width
    target.verify(state, TokenTree.chain([0] * width, [0.0] * width))
    layers = [size(layer.states) for layer in state.pending]
    planned = {
        (method, commit): lines_of(configs_of("tiny", 8), gdn_verify=method, commit=commit)[
            "states of tree nodes"
        ].bytes
        for method in ("fused", "node_recurrent")
        for commit in ("replay", "select")
    }
    assert planned["node_recurrent", "select"] == sum(layers)
    assert planned["node_recurrent", "replay"] == layers[0]
    assert planned["fused", "replay"] == planned["fused", "select"] == 0


def test_a_dense_target_has_no_recurrent_state():
    model = library_model("dense")
    configs = StackConfigs(model.config, drafter_config("tiny", 8), None)
    lines = lines_of(configs)
    target = Target(copy.deepcopy(model).to(BF16), tap_layer_ids=[0])
    assert lines["target weights"].bytes == size(*target.model.state_dict().values())
    state = target.new_state(CAPACITY.length, CAPACITY.width)
    assert lines["attention keys and values"].bytes == size(state.keys, state.values)
    assert lines["Gated-DeltaNet states"].bytes == lines["kept from verify to commit"].bytes == 0
    assert "Weaver tables" not in lines


def test_the_27b_stack_has_the_sizes_of_the_design():
    lines = lines_of(configs_of("27b", 64))
    assert lines["Gated-DeltaNet states"].bytes == 150_994_944  # 151 MB
    assert lines["drafter weights"].bytes == 2 * 1_730_213_120
    assert lines["Weaver weights"].bytes == 2 * 56_694_784
    assert round(lines["Weaver tables"].bytes / 1e9, 2) == 2.03
    assert round(lines["target weights"].bytes / 1e9, 1) == 53.8
    recurrent = {"gdn_verify": "node_recurrent", "commit": "select"}
    # 70 rows of 3.15 MB in each of 48 layers.
    assert lines_of(configs_of("27b", 64), **recurrent)["states of tree nodes"].bytes == 70 * 150_994_944
    assert 60e9 < total_bytes(list(lines.values())) < 70e9


def test_the_table_has_a_line_per_part_and_their_sum(lines):
    table = plan_table(list(lines.values())).splitlines()
    assert len(table) == len(lines) + 1
    assert len({len(line) for line in table}) == 1
    assert any(line.startswith("logits (estimate)") for line in table)
    assert any(line.startswith("target weights  ") for line in table)
    assert table[-1].split() == ["sum", f"{total_bytes(list(lines.values())) / 1e9:.2f}", "GB"]


def test_too_little_memory_is_refused_with_what_is_missing():
    plan = [plans.Line("weights", 70 * 10**9, True)]
    require_memory(plan, 70 * 10**9, "Some GPU")
    with pytest.raises(UserError, match=r"found 57.5 GB free on Some GPU; 70.0 GB are needed, 12.5 GB are missing"):
        require_memory(plan, 57_500_000_000, "Some GPU")


def test_a_stack_that_a_gpu_cannot_hold_is_refused_before_weights_are_read(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 2 * 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(Target, "from_pretrained", None)
    with pytest.raises(UserError, match=r"found 1\.0 GB free on Some GPU; .* GB are missing"):
        Stack.load(SHIPPED, dtype="bfloat16", gdn_verify="fused", commit="replay", device="auto")
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("target weights")
    assert printed[-1].startswith("sum")


def test_building_a_runtime_piece_by_piece_changes_nothing(stack, monkeypatch):
    weaver = stack.weaver.weaver
    monkeypatch.setattr("tfm_bench.drafting.weaver_tree.TABLE_ROWS", 100)  # 320 rows: the last piece is shorter
    pieces = WeaverRuntime(weaver, stack.target.embedding, stack.target.head.weight)
    torch.testing.assert_close(pieces.token_table, stack.weaver.token_table)
    torch.testing.assert_close(pieces.residual_head, stack.weaver.residual_head)


def test_available_memory_is_what_the_system_says(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n")
    assert available_memory(meminfo) == 20_480_000_000
    meminfo.write_text("MemTotal:       24000000 kB\n")
    assert available_memory(meminfo) is None
    assert available_memory(tmp_path / "missing") is None
