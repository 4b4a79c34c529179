import json
import math
import pickle
import warnings

import numpy as np
import pytest
import safetensors.numpy
import torch

from batchbalance import DrawMismatchError, FileFormatError, Predictions
from batchbalance.predictions.arrays import check_draw_ids
from batchbalance.system.sealed import checksum
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed

PROBS = random_probs(7, 3, 4, seed=1)


def test_all_three_forms_hold_the_same_numbers():
    expected = np.log(PROBS)
    for made in (
        Predictions.from_probs(PROBS),
        Predictions.from_log_probs(np.log(PROBS)),
        Predictions.from_logits(np.log(PROBS) + 5.0),
    ):
        np.testing.assert_allclose(made.log_probs().numpy(), expected, atol=1e-12)
        assert (made.num_points, made.num_draws, made.num_classes) == (7, 3, 4)


def test_axes_in_any_order_and_one_model():
    turned = np.ascontiguousarray(PROBS.transpose(2, 0, 1))
    assert torch.equal(Predictions.from_probs(turned, "cns").log_probs(), Predictions.from_probs(PROBS).log_probs())
    assert Predictions.from_probs(PROBS[:, 0], "nc").num_draws == 1
    assert Predictions.from_probs(PROBS[:, 0].T, "cn").num_points == 7


def test_torch_dlpack_lists_and_dtypes():
    class OnlyDlpack:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **_):
            return self.tensor.__dlpack__()

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    tensor = torch.from_numpy(PROBS).float().requires_grad_()
    assert Predictions.from_probs(tensor).dtype == torch.float32
    assert torch.equal(
        Predictions.from_probs(OnlyDlpack(tensor.detach())).log_probs(), Predictions.from_probs(tensor).log_probs()
    )
    assert Predictions.from_probs(PROBS.tolist()).dtype == torch.float64
    half = Predictions.from_probs(tensor.detach().half())
    assert half.dtype == torch.float32
    assert torch.allclose(half.log_probs().exp().sum(2), torch.ones(7, 3), atol=1e-6)
    votes = Predictions.from_probs(np.eye(3, dtype=np.int64)[None])
    assert votes.log_probs()[0, 0].tolist() == [0.0, -np.inf, -np.inf]
    assert Predictions.from_probs(PROBS.astype(">f4")).dtype == torch.float32
    read_only = PROBS.copy()
    read_only.flags.writeable = False
    assert Predictions.from_probs(read_only).num_points == 7


def test_arguments_are_copied():
    given = PROBS.copy()
    made = Predictions.from_probs(given)
    logs = torch.from_numpy(np.log(PROBS))
    kept = Predictions.from_log_probs(logs)
    before = made.log_probs().clone(), kept.log_probs().clone()
    given[:] = 0
    logs[:] = 0
    assert torch.equal(made.log_probs(), before[0])
    assert torch.equal(kept.log_probs(), before[1])


def nan_at(value):
    bad = PROBS.copy()
    bad[2, 1, 3] = value
    return bad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Predictions.from_probs(nan_at(np.nan)), r"NaN or \+inf \(first at point 2, draw 1, class 3\)"),
        (lambda: Predictions.from_logits(nan_at(np.inf)), r"NaN or \+inf \(first at point 2, draw 1, class 3\)"),
        (lambda: Predictions.from_log_probs(np.full((1, 2, 3), -np.inf)), "only -inf"),
        (lambda: Predictions.from_probs(PROBS * 1.001), "sum of 1.001"),
        (lambda: Predictions.from_probs(np.log(PROBS) * 3), "look like log-probs"),
        (lambda: Predictions.from_probs(np.log(PROBS) + 3), "look like logits"),
        (lambda: Predictions.from_log_probs(PROBS), "look like probs"),
        (lambda: Predictions.from_log_probs(np.log(PROBS) + 9), "look like logits"),
        (lambda: Predictions.from_log_probs(np.log(PROBS) - 1), "sum of 0.367"),
        (lambda: Predictions.from_probs(PROBS[0]), r"3 axes \(nsc\), got shape \(3, 4\)"),
        (lambda: Predictions.from_probs(PROBS, "nss"), "permutation of 'nsc'"),
        (lambda: Predictions.from_probs(PROBS[:0]), "0 points"),
        (lambda: Predictions.from_probs(PROBS.astype(complex)), "complex"),
        (lambda: Predictions.from_probs(PROBS.astype(str)), "real numbers"),
        (lambda: Predictions.from_probs(PROBS, draw_ids=["a", "b"]), "3 distinct names, got 2"),
        (lambda: Predictions.from_probs(PROBS, draw_ids=["a", "b", "a"]), "3 with 2 distinct"),
        (lambda: Predictions.from_probs(PROBS, draw_ids="abc"), "list of 3 names or whole numbers, got 'abc'"),
        (lambda: check_draw_ids({"a": 1, "b": 2, "c": 3}, 3), "list of 3 names"),
        (lambda: check_draw_ids({1, 2, 3}, 3), "list of 3 names"),
        (lambda: check_draw_ids([1.5, 2.5, 3.5], 3), "list of 3 names"),
        (lambda: check_draw_ids([True, False, 2], 3), "list of 3 names"),
        (lambda: Predictions.from_probs(PROBS, weights=np.array([0.5 + 1j, 0.25, 0.25])), "`weights` must be real"),
        (lambda: Predictions.from_probs(PROBS, weights=torch.tensor([0.5 + 1j, 0.25, 0.25])), "`weights` must be real"),
        (lambda: Predictions.from_probs(torch.tensor(PROBS[0]).to_sparse(), "nc"), "must be dense, got .*to_dense"),
        (lambda: Predictions.from_probs(PROBS, weights=[0.5, 0.5]), "each of 3 draws"),
        (lambda: Predictions.from_probs(PROBS, weights=[0.5, 0.6, -0.1]), "non-negative"),
        (lambda: Predictions.from_probs(PROBS, weights=[1, 1, 1]), "sum 3; divide"),
    ],
)
def test_bad_arrays_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_draw_ids_may_come_in_arrays():
    for given in (np.array([3, 1, 2]), torch.tensor([3, 1, 2]), (3, "1", 2)):
        assert check_draw_ids(given, 3) == ("3", "1", "2")


def test_16_bit_rows_may_be_off_by_a_hundredth():
    Predictions.from_probs((PROBS * 1.004).astype(np.float16))
    with pytest.raises(ValueError, match="rows sum to 1"):
        Predictions.from_probs((PROBS * 1.03).astype(np.float16))


def test_rounding_beyond_0_and_1_is_no_mistake():
    made = Predictions.from_probs([[[1.0000000000000002, -1e-17]]])
    assert made.log_probs()[0, 0].tolist() == [0.0, -np.inf]


def test_log_probs_that_are_off_within_the_tolerance_are_normalised():
    shifted = Predictions.from_log_probs(np.log(PROBS) + 9e-5)
    np.testing.assert_allclose(shifted.log_probs().exp().sum(dim=2).numpy(), 1, atol=1e-12)


def test_minus_infinity_is_a_log_probability():
    made = Predictions.from_log_probs(np.log([[[0.25, 0.75, 1e-300]]]) + np.array([0, 0, -np.inf]))
    assert made.log_probs()[0, 0, 2] == -torch.inf


def test_logits_that_are_probabilities_warn():
    with pytest.warns(UserWarning, match="look like probabilities"):
        Predictions.from_logits(PROBS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictions.from_logits(PROBS + 0.01)


def test_draws_are_compared_by_id_weight_and_class():
    pool = Predictions.from_probs(PROBS, draw_ids=["a", "b", "c"])
    pool.check_same_draws(Predictions.from_probs(PROBS[:2]))
    for other, message in [
        (Predictions.from_probs(PROBS[:, :2]), "3 draws, got 2"),
        (Predictions.from_probs(PROBS, draw_ids=["a", "c", "b"]), r"'c' where the pool has 'b' \(position 1\)"),
        (Predictions.from_probs(random_probs(3, 3, 5)), "4 classes, got 5"),
        (Predictions.from_probs(PROBS, weights=random_weights(3)), "same draw weights"),
    ]:
        with pytest.raises(DrawMismatchError, match=message):
            pool.check_same_draws(other)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_saving_and_loading_changes_no_bit(tmp_path, suffix):
    for dtype in (np.float32, np.float64):
        made = Predictions.from_probs(PROBS.astype(dtype))
        made.save(tmp_path / f"p{suffix}")
        loaded = Predictions.load(tmp_path / f"p{suffix}")
        assert torch.equal(loaded.log_probs(), made.log_probs())
        assert loaded.dtype == made.dtype
    note = ["p.npy.json"] if suffix == ".npy" else []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"p{suffix}", *note]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_ids_and_weights_are_saved(tmp_path, suffix):
    made = Predictions.from_probs(PROBS, draw_ids=["ä", "2", "x y"], weights=random_weights(3))
    made.save(tmp_path / f"p{suffix}")
    loaded = Predictions.load(tmp_path / f"p{suffix}")
    made.check_same_draws(loaded)
    assert loaded.draw_ids == ("ä", "2", "x y")


def test_npy_is_memory_mapped_and_never_written_to(tmp_path):
    path = tmp_path / "p.npy"
    np.save(path, PROBS.transpose(1, 0, 2).astype(np.float32))
    before = path.read_bytes()
    loaded = Predictions.load(path, "probs", "snc")
    assert loaded.source.values == "probs"
    assert torch.allclose(loaded.log_probs(slice(2, 4)).exp().double(), torch.from_numpy(PROBS[2:4]), atol=1e-6)
    assert torch.allclose(loaded.log_probs([4, 0])[1].exp().double(), torch.from_numpy(PROBS[0]), atol=1e-6)
    assert path.read_bytes() == before


def test_the_mean_of_many_draws_does_not_drift():
    probs = random_probs(2, 60_000, 3, seed=5).astype("float32")
    mean = Predictions.from_probs(probs).mean_probs()
    for point in range(2):
        for label in range(3):
            expected = math.fsum(probs[point, :, label].tolist()) / 60_000
            assert float(mean[point, label]) == pytest.approx(expected, abs=1e-6)


def test_chunks_cover_the_points_once():
    made = Predictions.from_probs(PROBS)
    pieces = [chunk for _, chunk in made.chunks(numbers=24)]
    assert len(pieces) == 4
    assert torch.equal(torch.cat(pieces), made.log_probs())


def test_named_arrays_say_what_they_hold(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.log(PROBS) + 2)
    assert np.allclose(Predictions.load(tmp_path / "a.npz").log_probs().exp(), PROBS)
    with pytest.raises(FileFormatError, match="holds logits, but `values` is 'probs'"):
        Predictions.load(tmp_path / "a.npz", "probs")
    np.savez(tmp_path / "b.npz", something=PROBS)
    assert Predictions.load(tmp_path / "b.npz", "probs").num_points == 7
    with pytest.raises(FileFormatError, match="named probs, logits or log_probs, got something"):
        Predictions.load(tmp_path / "b.npz")
    safetensors.numpy.save_file({"probs": PROBS}, tmp_path / "c.safetensors", {"draw_ids": json.dumps(["a", "b", "c"])})
    assert Predictions.load(tmp_path / "c.safetensors").draw_ids == ("a", "b", "c")


def test_bad_files_are_refused(tmp_path):
    good = tmp_path / "good.npy"
    np.save(good, PROBS)
    cases = {
        "empty.npy": (b"", "is empty"),
        "cut.npy": (good.read_bytes()[:200], "damaged or not a .npy file"),
        "text.npy": (b"hello, this is no array", "pickled|damaged"),
        "pickled.npy": (pickle.dumps([1, 2]), "pickled"),
        "text.npz": (b"PK nonsense", "damaged|pickled"),
        "text.safetensors": (b"nonsense that is long enough", "damaged"),
        "other.txt": (b"x", "must end in .npy, .npz or .safetensors, got '.txt'"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            Predictions.load(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FileFormatError, match="pickled objects, which are never loaded"):
        Predictions.load(tmp_path / "objects.npy")
    with pytest.raises(FileNotFoundError, match="no such file"):
        Predictions.load(tmp_path / "absent.npy")
    np.save(tmp_path / "log.npy", np.log(PROBS))
    with pytest.raises(FileFormatError, match=r"log\.npy: predictions must be probabilities"):
        Predictions.load(tmp_path / "log.npy")


def test_saving_to_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OSError, match="cannot write"):
        Predictions.from_probs(PROBS).save(tmp_path / "no" / "p.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    Predictions.from_probs(PROBS).save(path)
    before = path.read_bytes()

    def broken(*_args, **_kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        Predictions.from_probs(PROBS[:2]).save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_npy_files_say_what_they_hold_in_a_file_beside_them(tmp_path):
    path = tmp_path / "p.npy"
    made = Predictions.from_probs(PROBS, draw_ids=["ä", "2", "x y"], weights=random_weights(3))
    made.save(path)
    loaded = Predictions.load(path)
    assert loaded.draw_ids == ("ä", "2", "x y")
    assert torch.equal(loaded.log_probs(), made.log_probs())
    assert torch.equal(loaded.weights, made.weights)
    assert Predictions.load(path, draw_ids=["a", "b", "c"]).draw_ids == ("a", "b", "c")
    with pytest.raises(FileFormatError, match="holds log-probs, but `values` is 'probs'"):
        Predictions.load(path, "probs")
    with pytest.raises(FileFormatError, match=r"holds axes 'nsc', but `axes` is 'snc'"):
        Predictions.load(path, axes="snc")


def changed_note(folder, **changes):
    note = folder / "p.npy.json"
    content = {**json.loads(note.read_text()), **changes}
    del content["checksum"]
    note.write_text(json.dumps({**content, "checksum": checksum(content)}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: np.save(folder / "p.npy", np.log(PROBS)), "must describe the current p.npy"),
        (lambda folder: np.save(folder / "p.npy", PROBS[:5]), "must describe the current p.npy"),
        (lambda folder: changed_note(folder, shape=[7, 3, 5]), "must describe the current p.npy"),
        (lambda folder: changed_note(folder, values="probabilities"), "must name the values of p.npy"),
        (lambda folder: changed_note(folder, version=9), "must be of version 1, got 9"),
        (lambda folder: changed_note(folder, draw_ids=["a"]), "3 distinct names, got 1"),
        (lambda folder: changed_note(folder, weights=[1.0, 1.0, 1.0]), "divide them by their sum"),
        (lambda folder: changed_note(folder, weights=["a", "b", "c"]), "`weights` must be real numbers"),
        (lambda folder: changed_note(folder, draw_ids="abc"), "must hold a list as `draw_ids`"),
        (lambda folder: (folder / "p.npy.json").write_text("{"), "must describe p.npy, got something else"),
        (lambda folder: (folder / "p.npy.json").write_text("[" * 20_000), "must describe p.npy, got something else"),
        (lambda folder: (folder / "p.npy.json").write_text("3"), "must describe p.npy, got something else"),
    ],
)
def test_a_note_about_another_array_is_an_error(tmp_path, spoil, message):
    Predictions.from_probs(PROBS, draw_ids=["a", "b", "c"]).save(tmp_path / "p.npy")
    spoil(tmp_path)
    with pytest.raises(FileFormatError, match=message):
        Predictions.load(tmp_path / "p.npy")


def test_a_save_that_fails_leaves_no_note_about_another_array(tmp_path, monkeypatch):
    path = tmp_path / "p.npy"
    Predictions.from_probs(PROBS, draw_ids=["a", "b", "c"]).save(path)
    before = Predictions.load(path).log_probs()

    def fail(*_):
        raise OSError("full disk")

    monkeypatch.setattr(Predictions, "question_chunks", fail)
    with pytest.raises(OSError, match="full disk"):
        Predictions.from_probs(PROBS[::-1].copy(), draw_ids=["x", "y", "z"]).save(path)
    monkeypatch.undo()
    assert torch.equal(Predictions.load(path).log_probs(), before)
    assert Predictions.load(path).draw_ids == ("a", "b", "c")
