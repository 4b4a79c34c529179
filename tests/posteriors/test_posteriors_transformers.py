"""Models of Hugging Face, of random weights: inputs, padding, training and draws against a plain loop with hooks."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from batchbalance.arguments.seeds import generator
from batchbalance.posteriors import DeepEnsemble, LastLayer, MCDropout
from batchbalance.posteriors.training.fitting import Recipe, fit, network_accuracy

pytestmark = pytest.mark.slow  # transformers takes seconds to import

RATE = 0.3
LENGTHS = [5, 9, 3, 7, 9]


@pytest.fixture(scope="module")
def tr():
    import transformers

    return transformers


def built(tr, name, attention=None):
    """A tiny classifier of three classes, the same at each call."""
    size = {"num_labels": 3, "attn_implementation": attention}
    if name == "gpt2":
        rates = {"attn_pdrop": RATE, "resid_pdrop": RATE, "embd_pdrop": RATE}
        tokens = {"vocab_size": 50, "pad_token_id": 49, "bos_token_id": 1, "eos_token_id": 2, "n_positions": 32}
        config = tr.GPT2Config(n_embd=32, n_layer=2, n_head=2, **tokens, **rates, **size)
        kind = tr.GPT2ForSequenceClassification
    else:
        size |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
        size |= {"hidden_dropout_prob": RATE, "attention_probs_dropout_prob": RATE}
        if name == "bert":
            config = tr.BertConfig(vocab_size=50, pad_token_id=0, max_position_embeddings=32, **size)
            kind = tr.BertForSequenceClassification
        else:
            config = tr.ViTConfig(image_size=16, patch_size=8, **size)
            kind = tr.ViTForImageClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
        for parameter in model.parameters():  # larger than they come, so that masks matter
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.3)
        return model.eval()


def texts(padding=0, length=None):
    """Tokens of five texts, padded behind to the longest of them."""
    stream = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 48, (n,), generator=stream) for n in LENGTHS]
    length = length or max(LENGTHS)
    ids = torch.full((len(rows), length), padding)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < torch.tensor(LENGTHS)[:, None]).long()}


def some(batch, rows):
    return {key: value[rows] for key, value in batch.items()}


def looped(model, batch, num_draws):
    """Log-probabilities by a loop over draws with hooks on dropout layers and a patched function in attention."""
    out = []
    for draw in range(num_draws):
        now = copy.deepcopy(model)
        running, calls = [], {}

        def drop(name, x, attention, draw=draw, calls=calls):
            call = calls.get(name, 0)
            calls[name] = call + 1
            purpose = f"mask/{name}" + (f"/{call}" if call else "")
            if attention:
                stream = generator(0, f"{purpose}/block/0/0", draw)
                kept = torch.rand((x.shape[1], 16, 16), generator=stream)[:, : x.shape[2], : x.shape[3]] >= RATE
            else:
                kept = torch.rand(x.shape[1:], generator=generator(0, purpose, draw)) >= RATE
            return x * kept / (1 - RATE)

        for name, module in now.named_modules():
            if isinstance(module, nn.Dropout):

                def hook(_, args, __, name=name, drop=drop, running=running):
                    weights = args[0].ndim == 4  # of attention, in versions that drop them by a layer
                    return drop(running[-1] if weights else name, args[0], weights)

                module.register_forward_hook(hook)
            inner = [part for part in module.modules() if "Attention" in type(part).__name__]
            if inner == [module]:
                module.training = True
                module.register_forward_pre_hook(lambda *_, name=name, running=running: running.append(name))
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(
                nn.functional,
                "dropout",
                lambda x, p, training, running=running, drop=drop: drop(running[-1], x, True) if p and training else x,
            )
            out.append(torch.log_softmax(now(**batch).logits, dim=-1))
    return torch.stack(out, dim=1)


class Texts(Dataset):
    """One text an item, each of its own length, with its label, as a tokenizer makes them."""

    def __init__(self, batch, labels=None):
        self.batch, self.labels = batch, labels

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, row):
        item = {key: value[row, : LENGTHS[row]].tolist() for key, value in self.batch.items()}
        return item if self.labels is None else {**item, "labels": int(self.labels[row])}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_texts_of_any_padding_against_a_loop(tr, name):
    padding = 49 if name == "gpt2" else 0
    batch = texts(padding)
    posterior = MCDropout(built(tr, name), 3)
    expected = looped(built(tr, name, "eager"), batch, 3)
    assert float((expected[:, 0] - expected[:, 1]).abs().mean()) > 0.1

    def check(inputs, **options):
        got = posterior.predict(inputs, **options).log_probs()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)

    check(batch)
    check(batch, batch_size=2)
    check(tr.BatchEncoding(batch))
    check(texts(padding, 12))
    check(Texts(batch), batch_size=2)  # each batch is padded to its own length
    check(Texts(batch, torch.arange(5)), batch_size=3)
    tokenizer = SimpleNamespace(
        padding_side="right", pad=lambda rows, **_: tr.BatchEncoding(padded(rows, padding)), deprecation_warnings={}
    )
    check(DataLoader(Texts(batch), batch_size=2, collate_fn=tr.DataCollatorWithPadding(tokenizer)))
    alone = posterior.predict({key: value[2:3, :3] for key, value in batch.items()}).log_probs()
    torch.testing.assert_close(alone, expected[2:3], rtol=0, atol=1e-4)
    general = MCDropout(built(tr, name), 3, fast=False)
    torch.testing.assert_close(general.predict(batch).log_probs(), expected, rtol=0, atol=1e-4)
    assert posterior.embed(batch).shape == (5, 32)
    torch.testing.assert_close(posterior.embed(Texts(batch), batch_size=2), posterior.embed(batch), rtol=0, atol=1e-4)


def padded(rows, padding):
    longest = max(len(row["input_ids"]) for row in rows)
    return {
        key: torch.tensor(
            [row[key] + [padding if key == "input_ids" else 0] * (longest - len(row[key])) for row in rows]
        )
        for key in rows[0]
    }


def test_images_against_a_loop(tr):
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    posterior = MCDropout(built(tr, "vit"), 3)
    expected = looped(built(tr, "vit", "eager"), {"pixel_values": images}, 3)
    assert float((expected[:, 0] - expected[:, 1]).abs().mean()) > 0.1
    for inputs in (images, {"pixel_values": images}, {"pixel_values": images.numpy()}):
        torch.testing.assert_close(posterior.predict(inputs).log_probs(), expected, rtol=0, atol=1e-4)
    assert posterior.embed(images).shape == (4, 32)


def test_padding_in_front_is_refused(tr):
    batch = {key: value.flip(1) for key, value in texts().items()}
    with pytest.raises(ValueError, match=r"must be padded on the right, .* use padding_side='right'"):
        MCDropout(built(tr, "bert"), 2).predict(batch)


def test_keys_that_a_model_does_not_take_are_named(tr):
    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = built(tr, "bert")

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask)

    batch = texts()
    narrow = MCDropout(Narrow(), 2)
    assert narrow.predict(batch).num_points == 5
    with pytest.raises(ValueError, match=r"got the keys input_ids, attention_mask, token_type_ids: .*unexpected"):
        narrow.predict({**batch, "token_type_ids": batch["attention_mask"]})


def test_training_ensembles_and_saving(tr, tmp_path):
    labels = torch.tensor([0, 1, 2, 1, 0])
    batch = texts()
    recipe = Recipe(learning_rate=3e-3, max_epochs=25, patience=25, batch_size=5, class_weighted=True)

    def build():
        return built(tr, "bert")

    held = fit(build, batch, labels, recipe, num_classes=3, validation=(batch, labels))
    reached = max(epoch.accuracy for epoch in held.history)
    assert network_accuracy(held.model, batch, labels) == reached > 0.4  # the share of the largest class
    items = Texts(batch, labels)
    read = fit(build, items, labels, recipe, num_classes=3, validation=(DataLoader(items), labels))
    assert [epoch.loss for epoch in held.history] == pytest.approx([epoch.loss for epoch in read.history], rel=1e-4)
    ensemble = DeepEnsemble(build, 2, Recipe(max_epochs=1), seed=1).fit(items, labels, num_classes=3)
    got = ensemble.predict(items, batch_size=2).log_probs()
    for member, state in enumerate(ensemble._states):
        model = build()
        model.load_state_dict(state)
        with torch.no_grad():
            expected = torch.log_softmax(model(**batch).logits, dim=-1)
        torch.testing.assert_close(got[:, member], expected, rtol=0, atol=1e-5)
    assert ensemble.embed(batch).shape == (5, 32)
    posterior = MCDropout(held.model, 3)
    posterior.save(tmp_path / "bert")
    again = MCDropout.load(tmp_path / "bert", build())
    assert torch.equal(again.predict(batch).log_probs(), posterior.predict(batch).log_probs())


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_last_layer_of_a_transformer(tr, name, tmp_path):
    model = built(tr, name)
    tokens = texts(49 if name == "gpt2" else 0)
    batch = {**tokens, "labels": torch.tensor([0, 1, 2, 0, 1])}
    posterior = LastLayer.from_model(model, [batch, batch], 5)
    with torch.no_grad():
        expected = torch.log_softmax(model(**tokens).logits, dim=1)
    torch.testing.assert_close(posterior.most_probable.predict(tokens).log_probs()[:, 0], expected, rtol=0, atol=1e-4)
    predicted = posterior.predict(tokens)
    layer = model.score if name == "gpt2" else model.classifier
    weights, biases = posterior._found.draws[:-1] / posterior._scale, posterior._found.draws[-1]
    for draw in range(5):
        with torch.no_grad():
            changed = copy.deepcopy(model)
            last = changed.score if name == "gpt2" else changed.classifier
            last.weight.copy_(weights[:, draw].T)
            logits = changed(**tokens).logits + biases[draw] - (0 if layer.bias is None else layer.bias)
        torch.testing.assert_close(predicted.log_probs()[:, draw], logits.log_softmax(dim=1), rtol=0, atol=1e-4)
    posterior.save(tmp_path)
    again = type(posterior).load(tmp_path, built(tr, name))
    assert torch.equal(again.predict(tokens).log_probs(), predicted.log_probs())
