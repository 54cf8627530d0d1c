"""Libraries are built once per content."""

import os
import shutil

import pytest

from kernels import compile as kernels_compile

COMPILER = os.environ.get("CXX", "c++")
pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    path = tmp_path / "one.cpp"
    path.write_text('#include "lanes.h"\nextern "C" int one() { return 1; }\n')
    return path


def test_second_build_finds_the_first(source):
    library = kernels_compile.build(source, COMPILER)
    written = library.stat().st_mtime_ns
    assert kernels_compile.build(source, COMPILER) == library
    assert library.stat().st_mtime_ns == written
    assert [path.name for path in library.parent.iterdir()] == [library.name]


def test_another_content_is_another_library(source, tmp_path):
    first = kernels_compile.build(source, COMPILER)
    source.write_text('extern "C" int one() { return 2; }\n')
    assert kernels_compile.build(source, COMPILER) != first
    second = kernels_compile.build(source, COMPILER)
    (tmp_path / "more.h").write_text("// a header beside it\n")
    assert kernels_compile.build(source, COMPILER) != second
