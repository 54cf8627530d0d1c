"""Training and evaluation documents of the tiny stack, made from pinned packages only.

Three domains, each split into train, dev and test by a hash of the prompt:
- math: worked word problems of reasoning-gym's gsm_symbolic generator (Apache-2.0). The splits hold different
  questions of the same templates.
- code: functions and classes of CPython's standard library (PSF licence), split by function.
- chat: questions about documented objects, answered by their docstrings (CPython: PSF; numpy, pandas, scipy, sympy,
  networkx, torch: BSD-3-Clause), split by object.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOMAINS = ("math", "code", "chat")
DOCUMENTED_PACKAGES = ("numpy", "pandas", "scipy", "sympy", "networkx", "torch")
SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "_vendor", "turtledemo", "testing"}
PARTS_PER_THOUSAND = {"dev": 10, "test": 20}


@dataclass(frozen=True)
class Document:
    """One example. kind "chat": prompt and answer are two turns; kind "text": the answer continues the prompt."""

    domain: str
    kind: str
    prompt: str
    answer: str

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the prompt's sha256."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:12]

    @property
    def split(self) -> str:
        """train, dev or test, from the prompt's hash alone."""
        part = int(hashlib.sha256(b"split|" + self.prompt.encode()).hexdigest(), 16) % 1000
        if part < PARTS_PER_THOUSAND["dev"]:
            return "dev"
        return "test" if part < PARTS_PER_THOUSAND["dev"] + PARTS_PER_THOUSAND["test"] else "train"


def math_documents(count: int, seed: int) -> Iterator[Document]:
    """`count` distinct word problems with worked solutions."""
    import reasoning_gym

    seen: set[str] = set()
    dataset = reasoning_gym.create_dataset("gsm_symbolic", size=2 * count, seed=seed)
    for entry in dataset:
        question = entry["question"].removesuffix(" Give the result as your final answer. Do not include units.")
        if question not in seen:
            seen.add(question)
            yield Document("math", "chat", question, entry["metadata"]["answer_cot"])
        if len(seen) == count:
            return


def standard_library_files() -> list[Path]:
    """Python files of the running interpreter's standard library, tests left out, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in root.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(root).parts))
    return sorted(files)


def package_files(package: str) -> list[Path]:
    """Python files that the installed distribution `package` lists, tests left out, in a fixed order."""
    listed = importlib.metadata.files(package) or []
    own = [entry for entry in listed if entry.suffix == ".py" and entry.parts[0] == package]
    return sorted(Path(str(entry.locate())) for entry in own if not SKIPPED_FOLDERS & set(entry.parts))


def definitions(path: Path) -> Iterator[tuple[str, str, ast.FunctionDef | ast.ClassDef]]:
    """(qualified name, source, node) of the functions and classes that stand at the top of a file or of a class."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):
        return
    lines = source.splitlines()
    scopes: list[tuple[str, list[ast.stmt]]] = [(path.stem, tree.body)]
    for scope, body in scopes:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                yield f"{scope}.{node.name}", text, node
            if isinstance(node, ast.ClassDef):
                scopes.append((f"{scope}.{node.name}", node.body))


def code_documents() -> Iterator[Document]:
    """Functions of the standard library: the prompt is the signature (and docstring), the answer the body."""
    seen: set[str] = set()
    for path in standard_library_files():
        for _, source, node in definitions(path):
            if (
                not isinstance(node, ast.FunctionDef)
                or not 120 < len(source) < 1200
                or node.lineno == node.body[0].lineno
            ):
                continue
            has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
            first = node.body[1 if has_docstring else 0]
            head = first.lineno - node.lineno
            lines = source.splitlines(keepends=True)
            prompt, answer = "".join(lines[:head]), "".join(lines[head:])
            if prompt not in seen and answer.strip():
                seen.add(prompt)
                yield Document("code", "text", prompt, answer)


def chat_documents() -> Iterator[Document]:
    """Questions about documented objects; the first paragraphs of the docstring answer them."""
    seen: set[str] = set()
    sources = [("python", path) for path in standard_library_files()]
    sources += [(package, path) for package in DOCUMENTED_PACKAGES for path in package_files(package)]
    for package, path in sources:
        for name, _, node in definitions(path):
            docstring = ast.get_docstring(node)
            if docstring is None or node.name.startswith("_"):
                continue
            answer = first_paragraphs(docstring)
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            prompt = f"What does the {kind} `{name}` of {package} do?"
            if len(answer) >= 60 and prompt not in seen:
                seen.add(prompt)
                yield Document("chat", "chat", prompt, answer)


def first_paragraphs(docstring: str, limit: int = 500) -> str:
    """Whole paragraphs up to `limit` characters, before the first section heading or example."""
    kept: list[str] = []
    for paragraph in docstring.split("\n\n"):
        if (
            re.search(r"^\s*(-{3,}|={3,}|>>>|\.\. )", paragraph, re.MULTILINE)
            or sum(map(len, kept)) + len(paragraph) > limit
        ):
            break
        kept.append(" ".join(paragraph.split()))
    return "\n".join(kept)


def documents(domain: str, math_count: int, seed: int) -> Iterator[Document]:
    """Documents of one domain, in a fixed order."""
    if domain == "math":
        return math_documents(math_count, seed)
    return code_documents() if domain == "code" else chat_documents()


def write_prompts(directory: Path, by_domain: dict[str, list[Document]], limit: int) -> None:
    """Writes <domain>.<split>.jsonl: of dev and test the first `limit` documents in order of their id.

    Different questions can have the same answer; those whose answer stands in train are left out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for domain, items in by_domain.items():
        seen = {item.answer for item in items if item.split == "train"}
        for split in ("dev", "test"):
            unseen = [item for item in items if item.split == split and item.answer not in seen]
            chosen = sorted(unseen, key=lambda item: item.id)[:limit]
            lines = [json.dumps({"id": item.id, "kind": item.kind, "text": item.prompt}) for item in chosen]
            (directory / f"{domain}.{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
