"""Labels as files give them, as text: the order of the classes.

Whole numbers are classes in the order of their values, so that classes 0 to C − 1 are numbered as they are called; all
other names are in the order of the alphabet.
"""

import re
from collections.abc import Iterable

WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def ordered(labels: Iterable[str]) -> list[str]:
    """Return the distinct labels in the order of their classes.

    Raises:
        ValueError: if all are numbers but not all whole, or one number is written in two ways.
    """
    names = sorted(set(labels))
    if not all(NUMBER.fullmatch(name) for name in names):
        return names
    spelled: dict[int, str] = {}
    for name in names:
        if not WHOLE.fullmatch(name):
            raise ValueError(f"labels must be whole numbers or names, got {name!r}; round it, or give it a name")
        number = int(name.partition(".")[0])
        if number in spelled:
            raise ValueError(f"a class must be written in one way, got {spelled[number]!r} and {name!r}")
        spelled[number] = name
    return [spelled[number] for number in sorted(spelled)]
