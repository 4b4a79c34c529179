import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_appendix_example_prints_eight_against_three(capsys):
    load("appendix_example").main()
    printed = capsys.readouterr().out
    assert "BALD 8 " in printed
    assert "EC²  3 " in printed
