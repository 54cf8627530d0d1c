"""Training a control: the hidden input has no influence, in any direction; and it lands where its variant looks."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tests.tfm_bench.models.tiny_drafters import make_config, make_drafter
from tfm_bench.models.dflash_config import FULL as FULL_LAYER
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig
from tfm_bench.models.weaver_control import CONTROLS, CONTROLS_FOLDER, FULL
from tfm_bench.models.weaver_files import load_weaver
from tfm_bench.training import weaver as training
from tfm_bench.training.blocks import BlockBatch
from tfm_bench.training.common import save_weights
from tfm_bench.training.regenerate import regenerated_files

VOCAB, HIDDEN, TAPS, BLOCK, POOL = 19, 32, 2, 4, 6
ROWS, ANCHORS, LENGTH = 2, 3, 12


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    sizes = {"POOL": POOL, "BLOCK_SIZE": BLOCK, "RANK": 8, "HEADS": 2, "MLP": 8, "ROWS": ROWS, "ANCHORS": ANCHORS}
    for name, value in sizes.items():
        monkeypatch.setattr(training, name, value)


def drafter_config():
    return make_config((FULL_LAYER,), block_size=BLOCK, sliding_window=None)


@pytest.fixture
def parts():
    """Weaver, drafter, text and one batch, all random."""
    drafter = make_drafter(drafter_config())
    torch.manual_seed(4)
    weaver = Weaver(WeaverConfig(HIDDEN, HIDDEN, 8, 1, 2, 8, K=BLOCK - 1, candidate_pool_size=POOL))
    for parameter in weaver.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    text = SimpleNamespace(embedding=torch.randn(VOCAB, HIDDEN), head=torch.randn(VOCAB, HIDDEN), horizon=BLOCK - 1)
    anchors = torch.tensor([[3, 5, 8], [2, 4, 7]])
    batch = BlockBatch(
        ids=torch.randint(VOCAB, (ROWS, LENGTH)),
        anchors=anchors,
        features=torch.randn(ROWS, LENGTH, TAPS * HIDDEN),
        labels=torch.randint(VOCAB, (ROWS, ANCHORS, BLOCK - 1)),
        valid=torch.ones(ROWS, ANCHORS, BLOCK - 1, dtype=torch.bool),
        target_logits=torch.randn(ROWS, ANCHORS, BLOCK - 1, VOCAB),
        target_hidden=torch.randn(ROWS, ANCHORS, HIDDEN),
    )
    return weaver, drafter, text, batch


def changed(batch, hidden_input):
    """The batch with another value of one input of Weaver; the drafter sees what it saw."""
    if hidden_input == "target_hidden":
        return replace(batch, target_hidden=-batch.target_hidden)
    return replace(batch, labels=(batch.labels + 1) % VOCAB)


INPUTS = {"blind_to_path": "labels", "no_target_hidden": "target_hidden"}


@pytest.mark.parametrize("name", list(CONTROLS))
def test_scores_do_not_change_with_the_hidden_input(parts, name):
    weaver, drafter, text, batch = parts
    other = changed(batch, INPUTS[name])
    for control, same in ((CONTROLS[name], True), (FULL, False)):
        one, two = (training.pool_distributions(weaver, drafter, text, b, control)[1] for b in (batch, other))
        assert torch.equal(one, two) is same


@pytest.mark.parametrize("name", list(CONTROLS))
def test_the_other_input_still_counts(parts, name):
    weaver, drafter, text, batch = parts
    (other,) = {*INPUTS.values()} - {INPUTS[name]}
    one, two = (
        training.pool_distributions(weaver, drafter, text, b, CONTROLS[name])[1] for b in (batch, changed(batch, other))
    )
    assert not torch.equal(one, two)


@pytest.mark.parametrize("name", list(CONTROLS))
def test_no_gradient_flows_to_the_hidden_input(parts, name):
    weaver, drafter, text, batch = parts
    for control, flows in ((CONTROLS[name], False), (FULL, True)):
        text.embedding = text.embedding.detach().requires_grad_()
        seen = replace(batch, target_hidden=batch.target_hidden.detach().requires_grad_())
        p, log_q, _ = training.pool_distributions(weaver, drafter, text, seen, control)
        training.lk_loss("log", p, log_q).sum().backward()
        gradient = text.embedding.grad if name == "blind_to_path" else seen.target_hidden.grad
        assert (gradient is not None and bool(gradient.abs().max() > 0)) is flows


def published(config):
    """config.json of a drafter."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    same = {name: getattr(config, name) for name in (*names, "head_dim", "rms_norm_eps", "rope_theta", "block_size")}
    taps = {"mask_token_id": config.mask_token_id, "target_layer_ids": list(config.target_layer_ids)}
    return {**same, "layer_types": list(config.layer_types), "dflash_config": taps}


@pytest.fixture
def output(tmp_path):
    """A folder as the steps before leave it: target, drafter and a regenerated text of twelve sequences."""
    heads = {
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 16}
    torch.manual_seed(1)
    model = Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=4, **heads, **sizes)
    )
    model.save_pretrained(tmp_path / "target")
    drafter = make_drafter(drafter_config())
    save_weights(tmp_path / "drafter", drafter.state_dict(), published(drafter.config))
    (tmp_path / "state").mkdir()
    sequences_path, features_path = regenerated_files(tmp_path)
    sequences = [(torch.randint(VOCAB, (14,)).tolist(), 3) for _ in range(12)]
    sequences_path.write_text(json.dumps(sequences))
    rows = torch.randn(12 * 14, (TAPS + 1) * HIDDEN).to(torch.bfloat16)
    features_path.write_bytes(rows.view(torch.int16).numpy().tobytes())
    return tmp_path


def run_main(monkeypatch, output, *arguments):
    argv = ["weaver", "--output", str(output), "--steps", "3", "--threads", "1", *arguments]
    monkeypatch.setattr(sys, "argv", argv)
    training.main()


@pytest.mark.parametrize(
    ("arguments", "folder", "loss", "control"),
    [
        (["--control", "blind_to_path"], "blind_to_path", "log", "blind_to_path"),
        (["--control", "no_target_hidden", "--form", "mixed"], "no_target_hidden", "mixed", "no_target_hidden"),
        (["--form", "mixed"], "mixed_loss", "mixed", "full"),
    ],
)
def test_a_control_is_written_where_its_variant_looks(monkeypatch, output, arguments, folder, loss, control):
    run_main(monkeypatch, output, *arguments)
    weaver = load_weaver(output / CONTROLS_FOLDER / folder)
    assert (weaver.config.candidate_pool_size, weaver.config.K) == (POOL, BLOCK - 1)
    assert float(weaver.lm_head_query_in.weight.abs().max()) > 0, "three steps move the zero head"
    report = json.loads((output / "state" / f"controls-{folder}-3.json").read_text())
    assert (report["loss"], report["control"], report["steps"]) == (loss, control, 3)
    assert not (output / "weaver").exists()


def test_a_control_does_not_resume_the_training_of_another_weaver(monkeypatch, output):
    """Same seed, loss and steps; only what they are shown differs, so the weights must."""
    for arguments in (["--form", "log"], ["--control", "blind_to_path"], ["--control", "no_target_hidden"]):
        run_main(monkeypatch, output, *arguments)
    heads = [load_weaver(path).lm_head_query_in.weight for path in sorted((output / CONTROLS_FOLDER).iterdir())]
    assert len(heads) == 3
    assert not any(torch.equal(heads[i], heads[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("arguments", [["--control", "deaf"], ["--form", "squared"]])
def test_unknown_controls_and_losses_are_refused(monkeypatch, output, capsys, arguments):
    with pytest.raises(SystemExit):
        run_main(monkeypatch, output, *arguments)
    assert "invalid choice" in capsys.readouterr().err
