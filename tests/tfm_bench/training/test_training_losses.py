"""Losses and batches of drafter and Weaver training, against loops and closed forms."""

import json
from types import SimpleNamespace

import pytest
import torch

from tfm_bench.training.blocks import RegeneratedText
from tfm_bench.training.regenerate import cut_after_stop, regenerated_files
from tfm_bench.training.weaver import better_loss, lk_loss, overlap

HIDDEN, TAPS, VOCAB = 8, 2, 11


@pytest.fixture
def text(tmp_path):
    """Six sequences with random features, and a head of 11 tokens."""
    lengths, prompts = [14, 20, 17, 25, 12, 16], [3, 5, 2, 9, 4, 6]
    generator = torch.Generator().manual_seed(1)
    sequences = [
        (torch.randint(0, VOCAB, (length,), generator=generator).tolist(), prompt)
        for length, prompt in zip(lengths, prompts, strict=True)
    ]
    for folder in ("state", "target"):
        (tmp_path / folder).mkdir()
    (tmp_path / "target" / "model.safetensors").write_bytes(b"weights")
    sequences_path, features_path = regenerated_files(tmp_path)
    sequences_path.write_text(json.dumps(sequences))
    rows = torch.randn(sum(lengths), (TAPS + 1) * HIDDEN, generator=generator).to(torch.bfloat16)
    features_path.write_bytes(rows.view(torch.int16).numpy().tobytes())
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    model = SimpleNamespace(
        config=SimpleNamespace(hidden_size=HIDDEN),
        model=SimpleNamespace(embed_tokens=SimpleNamespace(weight=weight)),
        lm_head=SimpleNamespace(weight=weight),
    )
    return RegeneratedText(tmp_path, model, block_size=6), sequences, rows.float()


def test_block_batch_is_aligned_with_the_sequences(text):
    regenerated, sequences, rows = text
    starts = dict(zip([tuple(ids) for ids, _ in sequences], range(len(sequences)), strict=True))
    offsets = torch.tensor([0] + [len(ids) for ids, _ in sequences]).cumsum(0)
    batch = regenerated.batch("train", 3, 4, [0])
    checked = 0
    for row in range(3):
        index = next(i for ids, i in starts.items() if batch.ids[row, : len(ids)].tolist() == list(ids))
        ids, prompt = sequences[index]
        feature_rows = rows[offsets[index] : offsets[index + 1]]
        for a, anchor in enumerate(batch.anchors[row].tolist()):
            assert prompt <= anchor < len(ids) - 1
            torch.testing.assert_close(batch.target_hidden[row, a], feature_rows[anchor - 1, -HIDDEN:])
            for d in range(5):
                inside = anchor + 1 + d < len(ids)
                assert bool(batch.valid[row, a, d]) == inside
                if inside:
                    assert batch.labels[row, a, d] == ids[anchor + 1 + d]
                    logits = feature_rows[anchor + d, -HIDDEN:] @ regenerated.head.T
                    torch.testing.assert_close(batch.target_logits[row, a, d], logits)
                    checked += 1
    assert checked > 20


def test_batches_depend_on_their_key_alone(text):
    regenerated = text[0]
    first, again, other = (regenerated.batch("train", 3, 4, [key]) for key in (1, 1, 2))
    assert torch.equal(first.anchors, again.anchors)
    assert not (torch.equal(first.anchors, other.anchors) and torch.equal(first.ids, other.ids))


def test_dev_and_train_share_no_sequence(text):
    split = text[0].split
    assert not {tuple(ids) for ids, *_ in split["dev"]} & {tuple(ids) for ids, *_ in split["train"]}


def test_overlap_and_losses_by_hand():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.7, 0.1])
    assert overlap(p, q.log()).item() == pytest.approx(0.6)
    assert lk_loss("log", p, q.log()).item() == pytest.approx(-torch.tensor(0.6).log().item())
    weight = torch.exp(torch.tensor(-0.6)).item()
    divergence = sum(a * torch.log(torch.tensor(a / b)).item() for a, b in [(0.5, 0.2), (0.3, 0.7), (0.2, 0.1)])
    assert lk_loss("mixed", p, q.log()).item() == pytest.approx(weight * divergence + (1 - weight) * 0.4, rel=1e-5)


@pytest.mark.parametrize("form", ["log", "mixed"])
def test_losses_are_least_where_the_distributions_agree(form):
    p = torch.tensor([0.5, 0.3, 0.2])
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        lk_loss(form, p, logits.log_softmax(-1)).backward()
        optimizer.step()
    assert overlap(p, logits.log_softmax(-1)).item() > 0.97


def test_better_loss_is_the_one_with_more_held_out_acceptance():
    form, means = better_loss(lambda form: {"weaver": [0.5 if form == "mixed" else 0.4] * 15})
    assert form == "mixed"
    assert means == pytest.approx({"log": 0.4, "mixed": 0.5})


@pytest.mark.parametrize(("ids", "kept"), [([4, 0, 5], [4, 0]), ([4, 5], [4, 5]), ([0, 0], [0])])
def test_cut_after_stop(ids, kept):
    assert cut_after_stop(ids, {0}) == kept
