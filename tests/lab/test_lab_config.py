import json
import tarfile
import tomllib
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbalance import FileFormatError, UnknownNameError
from batchbalance.lab.config import ADDED, DataSettings, RunConfig, read_comparison
from batchbalance.lab.data import PAPER_SIZES, SplitSizes
from batchbalance.lab.paper.experiments import experiment
from batchbalance.posteriors import Schedule
from batchbalance.posteriors.training import Recipe
from batchbalance.posteriors.training.networks import fashion_cnn, vgg11
from conftest import fresh

RESULTS = Path(__file__).parents[2] / "results"

FILE = """
batch_size = 10
budget = 60
strategies = ["random", {name = "power-balance", beta = 2}, {name = "batch-balance", ratio = 0.5}]
[data]
name = "digits"
[model]
name = "tabular-mlp"
hidden = [32]
[posterior]
num_draws = 20
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "comparison.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def names(path, *changes):
    return [run.folder_name for run in read_comparison(path, changes).runs()]


def test_one_run_for_each_strategy(path):
    runs = read_comparison(path).runs()
    assert [run.label for run in runs] == ["random", "power-balance(beta=2)", "batch-balance [ratio=0.5]"]
    assert [run.edges.ratio for run in runs] == [0.25, 0.25, 0.5]
    assert runs[1].chosen_strategy.beta == 2
    assert runs[1].folder_name.startswith("power-balance-beta=2-")


def test_the_canonical_form_is_complete_and_a_fixed_point(path):
    for run in read_comparison(path).runs():
        canonical = run.canonical
        assert json.loads(json.dumps(canonical)) == canonical
        again = RunConfig(**canonical)
        assert again.canonical == canonical
        assert again.folder_name == run.folder_name
    assert (canonical["training"]["steps"], canonical["training"]["patience"]) == (1000, None)
    assert canonical["model"] == {"name": "tabular-mlp", "hidden": [32], "dropout": 0.5, "width": 1.0}
    assert canonical["split"]["validation"] == PAPER_SIZES["digits"].validation


def test_a_recipe_of_epochs_is_written_as_before_steps_came(path):
    (run,) = read_comparison(path, ["training.patience=5", 'strategies=["random"]']).runs()
    assert "steps" not in run.canonical["training"]
    assert run.canonical["training"]["max_epochs"] == 100
    assert RunConfig(**run.canonical).training == run.training


def test_auto_is_a_strategy_without_options(path):
    (run,) = read_comparison(path, ['strategies=["auto"]']).runs()
    assert (run.label, run.canonical["strategy"], run.chosen_strategy) == ("auto", {"name": "auto"}, "auto")
    with pytest.raises(UnknownNameError, match="'beta'"):
        read_comparison(path, ['strategies=[{name="auto", beta=2}]']).runs()
    with pytest.raises(ValueError, match="`ratio` is not used by strategy 'auto'"):
        read_comparison(path, ['strategies=[{name="auto", ratio=0.5}]']).runs()


def test_all_but_random_take_a_cold_start(path):
    without, runs = read_comparison(path).runs(), read_comparison(path, ['cold_start="max-herding"']).runs()
    assert [run.first_strategy and run.first_strategy.name for run in runs] == [None, "max-herding", "max-herding"]
    assert [run.folder_name == before.folder_name for run, before in zip(runs, without, strict=True)] == [
        True,
        False,
        False,
    ]
    assert "cold_start" not in without[1].canonical
    assert RunConfig(**runs[1].canonical).folder_name == runs[1].folder_name
    with pytest.raises(UnknownNameError, match="max-herding"):
        read_comparison(path, ['cold_start="max-herdin"'])


def test_an_option_that_is_not_set_is_left_out(path):
    three, plain = read_comparison(
        path, ['strategies=[{name="cluster-margin", num_clusters=3}, "cluster-margin"]']
    ).runs()
    assert three.canonical["strategy"]["num_clusters"] == 3
    assert "num_clusters" not in plain.canonical["strategy"]
    assert three.folder_name != plain.folder_name


def test_a_run_is_found_by_its_hash_whatever_its_label(path, tmp_path):
    run = read_comparison(path).runs()[1]
    assert run.folder(tmp_path / "absent") == tmp_path / "absent" / run.folder_name
    older = tmp_path / run.folder_name.replace("power-balance-beta=2", "power-balance")  # as if 2 had been the default
    older.mkdir()
    assert run.folder(tmp_path) == older
    assert read_comparison(path).runs()[0].folder(tmp_path) != older


def recorded(name):
    """The folders of the runs in an archive of results, and their settings."""
    with tarfile.open(RESULTS / f"{name}.tar.xz") as archive:
        configs = [member for member in archive.getmembers() if Path(member.name).name == "config.json"]
        return {Path(member.name).parent.name: json.load(archive.extractfile(member)) for member in configs}


def hashes(folders):
    return {name.rpartition("-")[2] for name in folders}


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.toml")))
def test_the_runs_of_results_are_still_found(name):
    wanted = hashes(run.folder_name for run in read_comparison(RESULTS / f"{name}.toml").runs())
    assert wanted
    assert wanted <= hashes(recorded(name))


@pytest.mark.parametrize(
    ("archive", "name", "preset", "changes"),
    [
        (
            "repeated-mnist-paper",
            "repeated-mnist",
            "paper",
            ['strategies=["random", "batch-balance", "auto"]', "training.max_epochs=100"],
        ),
        ("cifar-10-csgmcmc", "cifar-10-csgmcmc", "laptop", ["data.partial=true"]),
    ],
)
def test_the_recorded_runs_of_presets_are_still_found(archive, name, preset, changes):
    runs = [run for part in experiment(name).comparisons(preset, changes).values() for run in part.runs()]
    assert hashes(recorded(archive)) <= hashes(run.folder_name for run in runs)


def test_recorded_settings_hash_to_their_folders():
    for path in RESULTS.glob("*.tar.xz"):
        for folder, content in recorded(path.name.removesuffix(".tar.xz")).items():
            assert hashes([RunConfig(**content).folder_name]) == hashes([folder]), folder


def test_what_came_later_is_left_out_at_its_default_and_only_there(path):
    networks = {**signature(vgg11).parameters, **signature(fashion_cnn).parameters}
    defaults = {
        "data": {name: field.default for name, field in DataSettings.model_fields.items()},
        "model": {key: networks[key].default for key in ADDED["model"]},
        "training": {field.name: field.default for field in fields(Recipe)},
        "posterior.schedule": {field.name: field.default for field in fields(Schedule)},
    }
    for table, later in ADDED.items():
        for key, value in later.items():
            default = defaults[table][key]
            assert value == (list(default) if isinstance(default, tuple) else default)
    vgg = "model={name='vgg11'}"
    assert names(path, vgg) == names(path, vgg, "model.head=[512, 512]")
    assert not set(names(path, vgg)) & set(names(path, vgg, "model.head=[4096, 4096]"))
    assert names(path) == names(path, "training.augmentation=none")
    assert not set(names(path)) & set(names(path, "training.augmentation=crop-flip"))
    chain = "posterior={kind='csg-mcmc'}"
    assert names(path, chain) == names(path, chain, "posterior.schedule.noise_examples=labels")
    for other in ("class_weighted=true", "samples_per_epoch=50", "noise_examples=50", "augmentation=crop-flip"):
        assert not set(names(path, chain)) & set(names(path, chain, f"posterior.schedule.{other}"))


def test_the_hash_sees_what_changes_a_number_and_nothing_else(path):
    before = names(path)
    for same in ("trials=9", "budget=500", "target_error=0.1", "model.width=1", "model.dropout=0.5", "threads=1"):
        assert names(path, same) == before
    for other in ("threads=2", "batch_size=5", "posterior.num_draws=21", "split.validation=7", "data.noise=0.2"):
        assert not set(names(path, other)) & set(before)
    # τ is nothing to a random batch, so that such runs are shared
    assert [a == b for a, b in zip(names(path, "edges.ratio=0.1"), before, strict=True)] == [True, False, True]


def test_what_the_split_leaves_open_is_the_papers(path):
    (run, *_) = read_comparison(path, ["split.small_validation=true", "split.initial_per_class=[1,2]"]).runs()
    default = SplitSizes(initial_per_class=2, validation=50, reference=9)
    assert run.split_sizes(default) == SplitSizes((1, 2), validation=50, reference=9, small_validation=True)
    assert run.canonical["split"] == {
        **{"initial_per_class": [1, 2], "initial": 0, "validation": 200, "reference": 200, "pool": None},
        **{"small_validation": True, "test": None},
    }


def test_presets_fill_a_schedule(path):
    changes = ("posterior={kind='csg-mcmc', preset='cifar100', schedule={cycles=2}}",)
    (run, *_) = read_comparison(path, changes).runs()
    assert (run.posterior.schedule.epochs, run.posterior.schedule.cycles) == (200, 2)
    assert "preset" not in run.canonical["posterior"]
    assert run.canonical["training"] is None


def test_draws_of_one_strategy(path):
    entries = "[{name='bald', num_draws=5}, 'balance', {name='bald', num_draws=9}]"
    changes = ("posterior.test_draws=8", f"strategies={entries}")
    runs = read_comparison(path, changes).runs()
    assert [(run.posterior.num_draws, run.posterior.test_draws) for run in runs] == [(5, 5), (20, 8), (9, 8)]
    assert [run.label for run in runs] == ["bald", "balance", "bald"]
    (same,) = read_comparison(path, ("posterior={num_draws=5, test_draws=5}", "strategies=['bald']")).runs()
    assert same.folder_name == runs[0].folder_name


def test_a_fixed_threshold_of_one_strategy(path):
    changes = ("edges.ratio=0.1", "strategies=['bald', {name='balance', threshold=0.02}]")
    runs = read_comparison(path, changes).runs()
    assert runs[1].edges.threshold == 0.02
    assert runs[1].edges.ratio == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("batch_siz=3", "'batch_siz'; did you mean 'batch_size'"),
        ("data.nam='x'", "'nam'; did you mean 'name'"),
        ("data.name=digit", "'digit'; did you mean 'digits'"),
        ("split.validatin=3", "'validatin'; did you mean 'validation'"),
        ("model.name=mnist-cn", "'mnist-cn'; did you mean 'mnist-cnn'"),
        ("model.drop=0.5", "'drop'; did you mean 'dropout'"),
        ("training.learning_rat=1", "'learning_rat'; did you mean 'learning_rate'"),
        ("training.optimizer=adm", "'adm'; did you mean 'adam'"),
        ("posterior.kind=mc-dropot", "'mc-dropot'; did you mean 'mc-dropout'"),
        ("posterior.num_draw=3", "'num_draw'; did you mean 'num_draws'"),
        ("posterior={kind='csg-mcmc', preset='cifar1'}", "'cifar1'; did you mean 'cifar10'"),
        ("posterior={kind='csg-mcmc', schedule={epoch=1}}", "'epoch'; did you mean 'epochs'"),
        ("edges.ration=0.5", "'ration'; did you mean 'ratio'"),
        ("strategies=['randm']", "'randm'; did you mean 'random'"),
        ("strategies=[{name='power-balance', bet=2}]", "'bet'; did you mean 'beta'"),
    ],
)
def test_unknown_names_suggest_the_nearest(path, change, message):
    with pytest.raises(UnknownNameError, match=message):
        read_comparison(path, [change]).runs()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("posterior.num_draws=0", "`posterior.num_draws` must be greater than or equal to 1, got 0"),
        ("posterior={num_draws=3, test_draws=4}", "`test_draws` must be at most the 3 draws, got 4"),
        ("training.patience=0", "`patience` must be a whole number of at least 1"),
        ("training.batch_size=many", "`training.batch_size` must be a valid integer"),
        ("split.validation=-1", "`validation` must be a whole number"),
        ("edges.pairs=some", "`edges.pairs` must be 'disjoint' or 'all'"),
        ("edges={ratio=0.5, threshold=0.1}", "must not be given together"),
        ("strategies=[{name='batch-balance', ratio=0.5, threshold=0.1}]", "must not be given together"),
        ("candidates=5", "`candidates` must be at least the batch size 10, got 5"),
        ("strategies=[]", "`strategies`"),
        ("strategies=[3]", "a strategy must be its name"),
        ("strategies=['bald', 'bald']", "must be distinct, got 'bald' more than once"),
        ("strategies=[{name='random', ratio=0.4}]", "`ratio` is not used by strategy 'random'"),
        ("strategies=[{name='bald', num_draws=0}]", "`num_draws` must be greater than or equal to 1, got 0"),
        ("data=3", "`data` must be"),
        ("data={}", "`data.name` must be given"),
        ("model={}", "must give the name of a network"),
        ("posterior={kind='committee'}", r"\[model\] is not used by posterior 'committee'"),
        ("model.hidden=[-1]", "`hidden` must be a whole number of at least 1, got -1"),
        ("model.hidden=[1.5]", "`hidden` must be a whole number of at least 1, got 1.5"),
        ("model.hidden=[]", "`hidden` must be the units of at least one layer"),
        ("model.hidden=64", "`hidden` must be the units of at least one layer"),
        ("model.dropout=1", r"`dropout` must be in \[0, 1\)"),
        ("model.dropout=true", "`dropout` must be a finite number"),
        ("model.width=1e308", "`width` must be at most 100"),
        ("model.width=nan", "`width` must be a finite number above 0"),
        ("model={name='resnet18', width=0.01}", "`width` must be at least 0.125 for resnet18"),
        ("model={name=['vgg11']}", "must give the name of a network"),
        ("split.small_validation=no", "`split.small_validation` must be a valid boolean, got 'no'"),
        ("split.small_validation=1", "`split.small_validation` must be a valid boolean, got 1"),
        ("data.partial=no", "`data.partial` must be a valid boolean, got 'no'"),
        ("data.noise=inf", "`data.noise` must be a finite number"),
        ("threads=true", "`threads` must be a valid integer, got True"),
        ("batch_size=true", "`batch_size` must be a valid integer, got True"),
        ("batch_size='5'", "`batch_size` must be a valid integer, got '5'"),
        ("edges.ratio=1.5", "`edges.ratio` must be less than or equal to 1"),
        ("edges.pairs=true", "`edges.pairs` must be"),
        ("edges.ratio=true", "`edges.ratio` must be a valid number, got True"),
        ("training.batch_size=1", "`batch_size` must be a whole number of at least 2, got 1"),
        ("training.batch_size=true", "`training.batch_size` must be a valid integer, got True"),
        ("training.samples_per_epoch=1", "`samples_per_epoch` must be a whole number of at least 2"),
        ("training.class_weighted=no", "`training.class_weighted` must be a valid boolean, got 'no'"),
        ("training.learning_rate=nan", "`learning_rate` must be a finite number above 0"),
        ("posterior={kind='csg-mcmc', schedule={batch_size=1}}", "`batch_size` must be a whole number of at least 2"),
        ("posterior.num_draws=true", "`posterior.num_draws` must be a valid integer, got True"),
        ("posterior.num_draws=1000000000000", "`posterior.num_draws` must be less than or equal to 100000"),
        ("trials=1000000000000000000", "`trials` must be less than or equal to 10000"),
        ("device=gpu", "`device` must be a name such as 'cpu'"),
        ("strategies=[{name='power-balance', beta=true}]", "option `beta` of 'power-balance': must not be true or"),
        ("budget.x=1", "'budget' in 'budget.x=1' must be a table"),
        ("nonsense", "must look like"),
    ],
)
def test_wrong_values_say_what_is_expected(path, change, message):
    with pytest.raises(ValueError, match=message):
        read_comparison(path, [change]).runs()


def test_needs_a_model(path):
    path.write_text(FILE.replace('[model]\nname = "tabular-mlp"\nhidden = [32]\n', ""))
    with pytest.raises(ValueError, match=r"\[model\] must be given for posterior 'mc-dropout'"):
        read_comparison(path)


def test_needs_an_end(path):
    path.write_text(FILE.replace("budget = 60", ""))
    with pytest.raises(ValueError, match="`target_error` must be given, got neither"):
        read_comparison(path)


def test_a_file_that_is_no_toml(path):
    path.write_bytes(b"batch_size = \xff")
    with pytest.raises(FileFormatError, match="must be a TOML file"):
        read_comparison(path)
    path.write_text("batch_size = = 3")
    with pytest.raises(FileFormatError, match="must be a TOML file"):
        read_comparison(path)


def toml(content):
    """A table as TOML, written by hand; tables come last."""

    def value(given):
        if isinstance(given, dict):
            return "{" + ", ".join(f"{key} = {value(each)}" for key, each in given.items()) + "}"
        return f"[{', '.join(map(value, given))}]" if isinstance(given, list) else json.dumps(given)

    lines = [f"{key} = {value(each)}" for key, each in content.items() if not isinstance(each, dict)]
    for name, table in content.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {value(each)}" for key, each in table.items())]
    return "\n".join(lines) + "\n"


def some(**settings):
    """A table with some of these settings."""
    return st.fixed_dictionaries({}, optional=settings)


share, whole = st.floats(0, 1), st.integers(1, 50)
network = st.fixed_dictionaries(
    {"name": st.just("tabular-mlp")},
    optional={"hidden": st.lists(whole, min_size=1, max_size=3), "dropout": st.floats(0.1, 0.9), "width": st.just(1)},
)
posteriors = st.one_of(
    st.fixed_dictionaries({"posterior": some(kind=st.just("mc-dropout"), num_draws=whole), "model": network}),
    st.fixed_dictionaries({"posterior": st.fixed_dictionaries({"kind": st.just("deep-ensemble"), "size": whole}),
                           "model": network, "training": some(max_epochs=whole, learning_rate=st.floats(1e-4, 1))}),
    st.fixed_dictionaries({"posterior": st.fixed_dictionaries({"kind": st.just("committee"), "size": whole})}),
)  # fmt: skip
strategies = st.lists(
    st.sampled_from(["random", "bald", "badge", {"name": "bald"}, {"name": "batch-balance", "pairs": "all"}])
    | st.builds(lambda beta: {"name": "power-balance", "beta": beta}, st.integers(0, 9) | st.floats(0, 9))
    | st.builds(lambda ratio: {"name": "balance", "ratio": ratio}, share),
    min_size=1, max_size=3,
    unique_by=lambda entry: entry if isinstance(entry, str) else entry["name"],
)  # fmt: skip
shared = st.fixed_dictionaries(
    {"batch_size": whole, "budget": whole, "strategies": strategies,
     "data": st.fixed_dictionaries({"name": st.sampled_from(["digits", "mnist", "repeated-mnist"])},
                                   optional={"copies": whole, "noise": share}),
     "edges": some(max_reference=whole, pairs=st.just("disjoint") | whole, threshold=share),
     "split": some(validation=st.integers(0, 50), reference=st.just("pool") | whole)},
    optional={"threads": whole, "trials": whole, "target_error": st.floats(0, 0.9)},
)  # fmt: skip


@fresh
@given(shared, posteriors, st.data())
def test_a_config_survives_files_folders_and_the_command_line(tmp_path_factory, first, second, data):
    content = {**first, **second}
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(toml(content), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == content
    runs = read_comparison(path).runs()
    assert len(runs) == len(content["strategies"])
    for run in runs:
        canonical = run.canonical
        stored = json.loads(json.dumps(canonical))
        assert stored == canonical
        again = RunConfig(**stored)
        assert (again.canonical, again.folder_name, again.label) == (canonical, run.folder_name, run.label)
        assert again.chosen_strategy == run.chosen_strategy
        assert canonical["batch_size"] == content["batch_size"]
        for table in ("data", "split", "model", "training", "posterior"):
            assert all(canonical[table][key] == value for key, value in content.get(table, {}).items())
    # The same settings in another order, or given on the command line, are the same runs.
    names = [run.folder_name for run in runs]
    keys = data.draw(st.permutations(list(content)))
    path.write_text(toml({key: content[key] for key in keys}), encoding="utf-8")
    assert [run.folder_name for run in read_comparison(path).runs()] == names
    moved = [key for key in keys if key not in ("data", "strategies")][: data.draw(st.integers(0, 4))]
    path.write_text(toml({key: value for key, value in content.items() if key not in moved}), encoding="utf-8")
    quoted = data.draw(st.booleans())
    changes = [f"{table}.{key}={value if isinstance(value, str) and not quoted else json.dumps(value)}"
               for table in moved if isinstance(content[table], dict)
               for key, value in content[table].items()]  # fmt: skip
    changes += [f"{key}={json.dumps(content[key])}" for key in moved if not isinstance(content[key], dict)]
    assert [run.folder_name for run in read_comparison(path, changes).runs()] == names
