import importlib.util
import math
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("num_hypotheses", "sigma"), [(16, 1 / 4), (30, 1 / 8)])
def test_appendix_bounds_hold_for_other_sizes(num_hypotheses, sigma):
    example = load("appendix_example")
    assert example.worst_case(num_hypotheses, sigma, example.ask_bald) == math.ceil(math.log2(num_hypotheses))
    assert example.worst_case(num_hypotheses, sigma, example.ask_ec2) <= math.ceil(math.log2(1 / sigma))
