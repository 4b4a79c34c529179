import os

import numpy as np
import pytest
import torch
from hypothesis import settings

from batchbalance import Predictions, connect
from children import Parent

# Some virtual machines announce AMX, and end a process that uses it. oneDNN reads this at its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

settings.register_profile("repo", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("repo")
fresh = settings(derandomize=False, print_blob=True)  # other examples in every run; a failure prints how to repeat it


def is_typed_pass(config):
    """Whether shapes and types are checked in this run (`make types`)."""
    return config.getoption("jaxtyping_packages") is not None


def pytest_ignore_collect(collection_path, config):
    """Do not even import files that have no test for the pass that checks types."""
    if is_typed_pass(config) and collection_path.match("test_*.py"):
        return "pytest.mark.typed" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(items):
    """Tests with Ray come last: they share one cluster, and the others expect none."""
    items.sort(key=lambda item: item.get_closest_marker("ray") is not None)


def pytest_sessionfinish(session, exitstatus):
    """A whole pass that checks types fails if a function with shapes was never called in it."""
    config = session.config
    if is_typed_pass(config) and exitstatus == 0 and config.args_source is config.ArgsSource.TESTPATHS:
        import typed

        if typed.not_called():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if is_typed_pass(config) and config.args_source is config.ArgsSource.TESTPATHS:
        import typed

        for name in typed.not_called():
            terminalreporter.write_line(f"never called with types checked: {name}; mark a test that calls it `typed`")


def random_probs(num_points, num_draws, num_classes, seed=0, spread=2.0, zeros=0.0):
    """Asymmetric random distributions (N, S, C), float64; a share of entries may be exactly 0."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.normal(size=(num_points, 1, num_classes)) + rng.normal(
        size=(num_points, num_draws, num_classes)
    )
    logits += 0.7 * rng.normal(size=(1, num_draws, num_classes))
    probs = np.exp(logits - logits.max(axis=2, keepdims=True))
    if zeros:
        drop = rng.random(probs.shape) < zeros
        drop[np.arange(num_points)[:, None], np.arange(num_draws)[None], probs.argmax(axis=2)] = False
        probs[drop] = 0
    return probs / probs.sum(axis=2, keepdims=True)


def random_weights(num_draws, seed=0):
    weights = np.random.default_rng(seed).random(num_draws) + 0.1
    return weights / weights.sum()


@pytest.fixture(autouse=True)
def quick_labels(request, monkeypatch):
    """Do not wait for the disk at each label: that is for crashes of the machine, which no test can make."""
    if "durable" not in request.fixturenames:
        monkeypatch.setattr("batchbalance.learner.labels.log.SYNCHRONOUS", "OFF")


@pytest.fixture
def durable():
    """Wait for the disk at each label, as users do."""


@pytest.fixture
def pool():
    """200 points, 12 draws, 4 classes."""
    return Predictions.from_probs(random_probs(200, 12, 4, seed=1))


@pytest.fixture
def pool_edges(pool):
    return connect(pool, 0.05)


@pytest.fixture(scope="session")
def parent():
    """Starts processes that need not import anything."""
    started = Parent()
    yield started
    started.close()


@pytest.fixture(scope="session")
def ray_cluster():
    """The address of a real cluster on loopback, two nodes of two CPUs and one; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    # Nothing here reads logs, or adds machines.
    options = {"include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(**options, num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        assert sum(node["Alive"] for node in ray.nodes()) == 2
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


ALONE = [  # it speaks to nobody but the page
    "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--host-resolver-rules=MAP phone.test 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """A real browser, in which every person has a context of their own."""
    from playwright.sync_api import sync_playwright

    from page_browser import chromium

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(playwright.chromium.executable_path), args=ALONE)
        yield started
        started.close()


@pytest.fixture
def new_context(browser):
    """Makes contexts, each a browser of its own; no request of any of them leaves this machine."""
    contexts, asked = [], set()

    def make(width=1200, height=800, scheme="light", **more):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        context.on("request", lambda request: asked.add(request.url.split("/")[2].rpartition(":")[0]))
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
    assert asked <= {"127.0.0.1", "phone.test"}


@pytest.fixture
def check_access():
    """Checks a page: nothing that axe calls serious, and nothing wider than the screen."""
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()

    def check(page):
        found = [each for each in axe.run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= page.viewport_size["width"]

    return check
