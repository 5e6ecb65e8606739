"""Bad inputs by kind: texts that are no YAML or JSON, values that are no numbers, and names that are no files."""

from collections.abc import Mapping
from itertools import pairwise

NINES = "9" * 5000
LETTERS = "abcdefghijkl"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{last}'] * 9)}]\n" for last, this in pairwise(LETTERS)
)
MERGES = "a: &a {x: 1, y: 2, z: 3}\n" + "".join(
    f"{this}: &{this} {{<<: [{', '.join([f'*{last}'] * 9)}]}}\n" for last, this in pairwise(LETTERS)
)

YAML: Mapping[str, bytes] = {
    "empty": b"",
    "comment": b"# nothing\n",
    "a list": b"- 1\n- 2\n",
    "a text": b"hello\n",
    "a number": b"1e-5",
    "null": b"null",
    "cut": b"{name: x",
    "tabs": b"a:\n\t- b\n",
    "two documents": b"a: 1\n---\nb: 2\n",
    "a key twice": b"name: x\nname: y\n",
    "a list as key": b"[1]: 2\n",
    "a date as key": b"2026-02-30: 1\n",
    "a number as key": b"1: 2\n",
    "an unknown key": b"nonsense: 1\n",
    "1,500 brackets": b"[" * 1_500,
    "100,000 brackets": b"[" * 100_000,
    "100,000 braces": b"{a: " * 100_000,
    "100,000 dashes": b"- " * 100_000,
    "an alias bomb": LAUGHS.encode(),
    "a merge bomb": MERGES.encode(),
    "an alias of itself": b"a: &a [*a]\n",
    "an alias of nothing": b"a: *b\n",
    "!!int abc": b"a: !!int abc\n",
    "!!float abc": b"a: !!float abc\n",
    "!!bool abc": b"a: !!bool abc\n",
    "!!timestamp": b"a: !!timestamp 2026-02-30\n",
    "!!binary": b"a: !!binary ====\n",
    "!!set": b"a: !!set {a, b}\n",
    "an object": b"a: !!python/object/apply:os.getpid []\n",
    "5,000 digits": f"a: {NINES}\n".encode(),
    "a key of 5,000 digits": f"{NINES}: 1\n".encode(),
    "binary": bytes(range(256)),
    "latin-1": b"a: caf\xe9\n",
    "utf-16": "a: 1\n".encode("utf-16"),
    "a control character": b"a: \x01\n",
    "a surrogate": b'a: "\\ud800"\n',
    "2 MiB": b"a: " + b"x" * 2**21,
}

JSON: Mapping[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "a list": b"[1, 2]",
    "a text": b'"x"',
    "a number": b"5",
    "an empty object": b"{}",
    "cut": b'{"a": 1',
    "a comma too much": b'{"a": 1,}',
    "5,000 digits": f'{{"a": {NINES}}}'.encode(),
    "100,000 brackets": b"[" * 100_000,
    "500 brackets": b"[" * 500 + b"]" * 500,
    "a deep object": b'{"a": ' * 500 + b"1" + b"}" * 500,
    "NaN": b"NaN",
    "a surrogate": b'{"model_type": "\\ud800"}',
    "a surrogate as key": b'{"\\ud800": 1}',
    "binary": bytes(range(256)),
    "latin-1": b'{"a": "\xe9"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
}

NO_NUMBERS: Mapping[str, str] = {  # as YAML and JSON spell them
    "null": "null",
    "a text": '"abc"',
    "an empty text": '""',
    "a date": '"2026-02-30"',
    "true": "true",
    "a list": "[1]",
    "an object": '{"a": 1}',
    "a fraction below 0": "-0.5",
    "below 0": "-1",
    "65 bits": "18446744073709551616",
    "400 digits": "9" * 400,
    "5,000 digits": NINES,
    "1e300": "1.0e+300",
    "1e-300": "1.0e-300",
    "deep": "[" * 900 + "]" * 900,
    "a surrogate": '"\\ud800"',
}
YAML_ONLY: Mapping[str, str] = {
    "a bare date": "2026-02-30",
    "!!int abc": "!!int abc",
    ".inf": ".inf",
    ".nan": ".nan",
    "-.inf": "-.inf",
    "1,500 brackets": "[" * 1_500,
}
JSON_ONLY: Mapping[str, str] = {"NaN": "NaN", "Infinity": "Infinity", "1e999": "1e999"}

CELLS: Mapping[str, str] = {  # as a CSV spells them
    "nothing": "",
    "a text": "abc",
    "below 0": "-1",
    "nan": "nan",
    "inf": "inf",
    "a date": "2026-02-30",
    "65 bits": "18446744073709551616",
    "5,000 digits": NINES,
    "1e300": "1e300",
    "underscores": "1_000",
    "60,000 brackets": "[" * 60_000,
    "a list": '"[1, 2]"',
    "an open quote": '"1',
    "a null byte": "1\0",
    "other digits": "\u0661",
}

WORDS: Mapping[str, str] = {  # at a flag that takes a number
    "nothing": "",
    "a text": "abc",
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "0": "0",
    "-1": "-1",
    "-0.5": "-0.5",
    "1e308": "1e308",
    "1e-308": "1e-308",
    "1e400": "1e400",
    "31 bits": "2147483648",
    "63 bits": "9223372036854775808",
    "64 bits": "18446744073709551616",
    "400 digits": "9" * 400,
    "5,000 digits": NINES,
    "underscores": "1_000",
    "other digits": "\u0661\u0662",
    "a surrogate": "\udcff",
    "999T": "999999999999999T",
}

NAMES: Mapping[str, str] = {  # in place of a file's
    "nothing": "",
    "300 characters": "n" * 300,
    "5,000 characters": "n" * 5000,
    "none": "no/such/file",
    "a folder": ".",
    "zeros": "/dev/zero",
    "a loop": "loop",
    "a closed folder": "closed/file",
    "bytes": "\udcff",
    "below a file": "small.csv/file",
}

NEVER = ("nothing", "a text", "nan", "-inf", "-1", "400 digits", "5,000 digits")  # what no number of a search can be
LENGTHS = ("choice:5=1e308", "choice:5=1e308,6=1e308", "uniform:1,1e9", "lognormal:1e308,1,9", f"uniform:1,{NINES}")
