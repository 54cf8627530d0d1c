"""What an SGLang installation is asked, and one line for an interpreter that is none."""

import sys

import pytest

from tests.tfm_bench.backends.fake_installation import FAKE, detected, install, make_settings
from tfm_bench.backends.detection import detect, require_installation, why_unsupported
from tfm_bench.backends.flags import server_arms
from tfm_bench.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def interpreter(tmp_path):
    """Makes an interpreter that runs a line of shell whatever it is asked."""

    def make(line):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_what_an_installation_has_is_asked_of_itself(monkeypatch):
    stack, arms = make_settings().stack, server_arms(make_settings())
    install(monkeypatch)
    upstream = detected()
    assert upstream.versions["sglang"] == "not installed"
    reasons = [why_unsupported(upstream, stack, arm) for arm in arms]
    assert reasons[:2] == [None, None]
    assert reasons[2] == reasons[3] == "SGLang not installed has no speculative algorithm DFLASH_TFM"
    install(monkeypatch, fork=1)
    fork = detected(fork="1")
    assert [why_unsupported(fork, stack, arm) for arm in arms] == [None] * 4
    older = fork.model_copy(update={"flags": [flag for flag in fork.flags if not flag.endswith("-proposal")]})
    assert [why_unsupported(older, stack, arm) is None for arm in arms] == [True, True, False, True]


@pytest.mark.parametrize("ask", [detect, lambda python: require_installation(sglang(python))], ids=["all", "a look"])
def test_an_interpreter_without_sglang_is_refused(ask, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(UserError, match=r"has no working SGLang \((ModuleNotFoundError: )?No module named 'sglang'\)"):
        ask(sys.executable)
    with pytest.raises(UserError, match=r"cannot be run \(No such file or directory\)"):
        ask(str(tmp_path / "python"))
    (tmp_path / "sglang").mkdir()  # a folder that happens to have the name
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match="has no working SGLang"):
        ask(sys.executable)


def sglang(python):
    return make_settings(sglang={"python": python}).sglang


def test_a_look_at_the_installation_imports_nothing_of_it(monkeypatch, tmp_path):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("raise RuntimeError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    require_installation(sglang(sys.executable))
    with pytest.raises(UserError, match=r"has no working SGLang \(RuntimeError: a library is missing\)"):
        detect(sys.executable)


def test_the_commit_of_an_installation_from_git_is_recorded(monkeypatch, tmp_path):
    metadata = tmp_path / "sglang-0.5.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    install(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", f"{FAKE}:{tmp_path}")
    assert "sglang_commit" not in detect(sys.executable).versions
    (metadata / "direct_url.json").write_text(f'{{"url": "u", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}')
    versions = detect(sys.executable).versions
    assert (versions["sglang"], versions["sglang_commit"]) == ("0.5.9", COMMIT)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r"printf '\377\n'", "gave no description of its SGLang"),
        ("echo '{}'", "gave no description of its SGLang"),
        (
            """echo '{"algorithms": [], "flags": [], "versions": {}, "device": null}'""",
            "gave no description of its SGLang",
        ),
        (r"printf 'a\n\377\033[1m bad\n' >&2; exit 3", "has no working SGLang (\ufffd [1m bad); see environment"),
        (r"printf '\n' >&2; exit 3", "has no working SGLang (exit code 3); see environment"),
        ("printf '%0999d' 7 >&2; exit 3", f"has no working SGLang ({'0' * 300}); see environment"),
    ],
    ids=["no UTF-8", "empty", "no version", "binary reason", "no reason", "long reason"],
)
def test_whatever_an_interpreter_writes_is_one_line(interpreter, line, expected):
    python = interpreter(line)
    with pytest.raises(UserError) as failure:
        detect(python)
    assert str(failure.value).startswith(f"sglang.python: {python} {expected}")
    assert str(failure.value).isprintable()


def test_bytes_that_are_no_text_do_not_hide_the_description(interpreter):
    description = '{"algorithms": ["DFLASH"], "flags": [], "versions": {"sglang": "1"}, "device": null}'
    python = interpreter(rf"printf '\377\n'; printf '\377' >&2; echo '{description}'")
    assert detect(python).algorithms == ["DFLASH"]
