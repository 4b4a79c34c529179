import hashlib
import json

import pytest

from batchbalance import FileFormatError
from batchbalance.lab.records import open_trial, read_runs, settings_hash, strategy_label
from batchbalance.system.sealed import write_sealed
from made_runs import journal_of
from small_runs import run_of

RANDOM = {"name": "random"}


def record(index, trial, indices=(1, 2)):
    return {"round": index, "trial": trial, "num_labelled": 10 + 2 * index, "indices": list(indices)}


def write_run(folder, strategy, trials, **settings):
    folder.mkdir(parents=True)
    write_sealed(folder / "config.json", {"batch_size": 2, **settings, "strategy": strategy})
    for seed, records in trials.items():
        (folder / f"trial-{seed}.jsonl").write_bytes(journal_of(records))


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    write_run(tmp_path / "a" / "random-1", RANDOM, {10: [record(0, 10)], 2: [record(0, 2), record(1, 2, [])]})
    write_run(tmp_path / "b" / "deep" / "bald-1", {"name": "bald"}, {})
    runs = read_runs([tmp_path, tmp_path / "a" / "random-1"])
    assert [run.label for run in runs] == ["random", "bald"]
    assert list(runs[0].trials) == [2, 10]
    assert runs[0].trials[2] == [record(0, 2), record(1, 2, [])]
    assert runs[0].config["batch_size"] == 2
    assert runs[1].trials == {}


def test_a_repeated_last_round_takes_the_place_of_the_earlier_one(tmp_path):
    lines = [record(0, 0), record(1, 0, []), record(1, 0), record(2, 0, []), record(2, 0), record(3, 0, [])]
    write_run(tmp_path / "r", RANDOM, {0: lines})
    (run,) = read_runs([tmp_path])
    assert run.trials[0] == [record(0, 0), record(1, 0), record(2, 0), record(3, 0, [])]


def test_a_half_written_last_line_is_ignored(tmp_path):
    write_run(tmp_path / "r", RANDOM, {0: [record(0, 0)]})
    with (tmp_path / "r" / "trial-0.jsonl").open("a") as file:
        file.write('{"round": 1, "tri')
    assert len(read_runs([tmp_path])[0].trials[0]) == 1


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(0, 0), record(2, 0)], "line 2 of .* must be round 1 of trial 0, got round 2"),
        ([record(0, 0), record(0, 0)], "line 2 of .* must be round 1 of trial 0, got round 0"),
        ([record(0, 1)], "must be round 0 of trial 0, got round 0 of trial 1"),
        ([[]], "line 1 of .* must be its number, a checksum and a record"),
    ],
)
def test_damaged_records_are_errors(tmp_path, records, message):
    write_run(tmp_path / "r", RANDOM, {0: records})
    with pytest.raises(FileFormatError, match=message):
        read_runs([tmp_path])


def test_damaged_configs_and_names_are_errors(tmp_path):
    write_run(tmp_path / "r", RANDOM, {0: []})
    (tmp_path / "r" / "trial-x.jsonl").write_text("")
    with pytest.raises(FileFormatError, match="must be named trial-<seed>"):
        read_runs([tmp_path])
    for text, message in (("{", "must be JSON"), ("[]", "a JSON object"), ('{"strategy": "random"}', "no strategy")):
        (tmp_path / "r" / "config.json").write_text(text)
        with pytest.raises(FileFormatError, match=message):
            read_runs([tmp_path])


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="got a path that does not exist"):
        read_runs([tmp_path / "missing"])
    with pytest.raises(FileNotFoundError, match="got a folder without runs"):
        read_runs([tmp_path])


def test_labels_name_options_that_are_not_defaults():
    assert strategy_label({"name": "power-balance", "beta": 1.0, "offset": False}) == "power-balance"
    assert strategy_label({"name": "power-balance", "beta": 2.0}) == "power-balance(beta=2)"
    assert strategy_label({"name": "balance", "offset": True}) == "balance(offset=True)"
    assert strategy_label({"name": "of another version", "x": 1}) == "of another version(x=1)"


def test_equal_labels_are_told_apart(tmp_path):
    for name, ratio in (("a", 0.25), ("b", 0.5)):
        write_run(tmp_path / name, {"name": "bald"}, {}, edges={"ratio": ratio}, threads=1)
    write_run(tmp_path / "c" / "x", RANDOM, {})
    write_run(tmp_path / "d" / "x", RANDOM, {})
    labels = [run.label for run in read_runs([tmp_path])]
    assert labels == ["bald [ratio=0.25]", "bald [ratio=0.5]", "random [c/x]", "random [d/x]"]


def test_what_most_runs_share_is_not_named(tmp_path):
    common = {"data": {"name": "digits"}, "model": {"name": "mlp"}}
    for name, ratio in (("a", 0.25), ("b", 0.5), ("c", 0.25)):
        write_run(tmp_path / name, {"name": "bald" if name < "c" else "random"}, {}, edges={"ratio": ratio}, **common)
    write_run(
        tmp_path / "d", {"name": "bald"}, {}, edges={"ratio": 0.25}, data={"name": "mnist"}, model={"name": "mlp"}
    )
    labels = [run.label for run in read_runs([tmp_path])]
    assert labels == ["bald", "bald [ratio=0.5]", "random", "bald [data.name=mnist]"]


@pytest.mark.parametrize("is_named", [False, True])
def test_every_flip_of_one_bit_in_a_config_is_found(tmp_path, is_named):
    config = {"batch_size": 5, "edges": {"ratio": 0.25}, "strategy": RANDOM}
    folder = tmp_path / (f"random-{settings_hash(config)}" if is_named else "mine")
    open_trial(folder, config, 0).close()
    path = folder / "config.json"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read_runs([folder])
        except FileFormatError:
            continue
        assert is_named, "the checksum alone has changed, and the name still fits"
        assert found[0].config == config
    if not is_named:
        return
    path.write_bytes(whole.replace(b"5", b"6", 1))
    for read in (lambda: read_runs([folder]), lambda: open_trial(folder, config, 0)):
        with pytest.raises(
            FileFormatError, match=r"must hold the settings with the hash .* got others; restore the file"
        ):
            read()
    path.write_bytes(whole)
    assert read_runs([folder])[0].config == config


def test_the_name_of_a_run_directory_fits_its_config(tmp_path):
    run = run_of("power-balance")
    folder = run.folder(tmp_path)
    open_trial(folder, run.canonical, 0).close()
    assert folder.name.endswith(f"-{settings_hash(run.canonical)}")
    assert read_runs([tmp_path])[0].config == run.canonical


def test_only_a_hash_in_the_name_is_checked(tmp_path):
    config = {"batch_size": 2, "strategy": RANDOM}
    digest = hashlib.sha256(b'{"batch_size": 2, "strategy": {"name": "random"}}').hexdigest()[:10]
    assert settings_hash(config) == settings_hash(dict(reversed(config.items()))) == digest
    for name in (f"random-{digest}", "random", "random-0123456789abcdef", "0123456789", "random-012345678"):
        write_run(tmp_path / name, RANDOM, {})
    assert len(read_runs([tmp_path])) == 5
    write_run(tmp_path / "random-0123456789", RANDOM, {})
    with pytest.raises(FileFormatError, match="or rename the folder if you named it"):
        read_runs([tmp_path])


def test_a_directory_of_another_config_is_refused(tmp_path):
    config = {"strategy": RANDOM, "threads": 1}
    with open_trial(tmp_path / "r", config, 3) as journal:
        journal.append(record(0, 3))
    assert json.loads((tmp_path / "r" / "config.json").read_text()) == {**config, "checksum": "0eab7859662262b6"}
    assert read_runs([tmp_path])[0].trials == {3: [record(0, 3)]}  # the lock beside it is no trial
    with pytest.raises(FileFormatError, match="must hold the settings of this run"):
        open_trial(tmp_path / "r", {**config, "threads": 2}, 3)
    with open_trial(tmp_path / "r", config, 3) as journal:
        assert list(journal) == [record(0, 3)]
        with pytest.raises(BlockingIOError):
            open_trial(tmp_path / "r", config, 3)
        open_trial(tmp_path / "r", config, 4).close()
