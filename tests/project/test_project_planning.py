"""Where in a batch audit items are, and that those who stop early answer their share of them."""

from batchbalance.project.planning import Question, spread
from made_projects import make


def test_places_are_decided_by_a_hash_and_orders_kept():
    chosen, others = [Question(i, "margin") for i in range(18)], [Question(90 + i, "audit") for i in range(2)]
    counts = [0] * 20
    for batch in range(500):
        found = spread(chosen, others, 3, batch)
        assert [each for each in found if each.reason == "margin"] == chosen
        assert [each for each in found if each.reason == "audit"] == others
        for place, each in enumerate(found):
            counts[place] += each.reason == "audit"
    assert found == spread(chosen, others, 3, 499)
    assert found != spread(chosen, others, 4, 499)
    assert all(abs(count - 50) < 4 * (500 * 0.1 * 0.9) ** 0.5 for count in counts)


def test_whoever_stops_half_way_has_answered_about_half_of_the_audit_items(tmp_path):
    project = make(tmp_path, 400, audit=0.2, random_arm=0.2)
    answered, asked = [0, 0], [0, 0]
    for _ in range(15):
        batch = list(project.ask(20))
        kinds = [project.view(name).reasons[0] for name in batch]
        for i, reason in enumerate(("audit", "random")):
            answered[i] += kinds[:10].count(reason)
            asked[i] += kinds.count(reason)
        project.tell(dict.fromkeys(batch, "ant"))  # one class: no model is trained
    assert asked[0] == 60
    for half, whole in zip(answered, asked, strict=True):
        assert abs(half - whole / 2) < 4 * (whole / 4) ** 0.5
    sheet = tmp_path / "batch.csv"
    batch = project.ask(20)
    batch.to_csv(sheet)
    assert [line.split(",")[0] for line in sheet.read_text().splitlines()[1:]] == project.open_questions()
