"""Draws from posteriors of other libraries: ``python examples/other_posteriors.py``.

Runs the lines of the table in docs/models.md for every library that is installed, and names the others.
"""

import warnings

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from batchbalance import Predictions, select
from batchbalance.posteriors import FunctionPosterior, MCDropout

torch.manual_seed(0)
X, Y = torch.randn(60, 4), torch.randint(3, (60,))
POOL = torch.randn(100, 4)


def network() -> nn.Module:
    """A small trained network."""
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    return model  # in training mode, batch normalisation included


def laplace_torch() -> Predictions:
    """A sample of laplace-torch is a vector of weights."""
    from laplace import Laplace

    net = network().eval()
    la = Laplace(net, "classification", subset_of_weights="all", hessian_structure="diag")
    la.fit(DataLoader(TensorDataset(X, Y), batch_size=20))
    posterior = FunctionPosterior.from_sampler(lambda: vector_to_parameters(la.sample(1)[0], net.parameters()), net)
    return posterior.predict(POOL)


def posteriors() -> Predictions:
    """A sample of posteriors is a dict of weights."""
    from posteriors.laplace import diag_fisher

    net = network().eval()
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def log_posterior(params, batch):  # of one batch, and auxiliary results
        logits = torch.func.functional_call(net, params, (batch[0],))
        return -nn.functional.cross_entropy(logits, batch[1]), logits

    transform = diag_fisher.build(log_posterior, per_sample=False, init_prec_diag=10.0)
    state, _ = transform.update(transform.init(weights), (X, Y))

    def sample():
        drawn = diag_fisher.sample(state)
        return lambda batch: torch.func.functional_call(net, drawn, (batch,))

    return FunctionPosterior.from_sampler(sample, net).predict(POOL)


def ivon() -> Predictions:
    """IVON samples weights in a context, at every call."""
    from ivon import IVON

    net = network().eval()
    optimizer = IVON(net.parameters(), lr=0.01, ess=len(X))
    for _ in range(20):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), Y).backward()
        optimizer.step()

    def model(batch):
        with optimizer.sampled_params():
            return net(batch)

    return FunctionPosterior.from_sampler(None, model, name="ivon").predict(POOL)


def bayesian_torch() -> Predictions:
    """Layers of bayesian-torch sample their weights at every call."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    net = network().eval()
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(net, {**prior, "type": "Reparameterization", "moped_enable": True, "moped_delta": 0.5})
    return FunctionPosterior.from_sampler(None, net).predict(POOL)


def torch_uncertainty() -> Predictions:
    """Bayesian layers of TorchUncertainty sample their weights at every call."""
    from torch_uncertainty.layers.bayesian import BayesLinear

    net = nn.Sequential(BayesLinear(4, 16), nn.ReLU(), BayesLinear(16, 3))
    return FunctionPosterior.from_sampler(None, net).predict(POOL)


def peft() -> Predictions:
    """A LoRA adapter with dropout is a network with dropout."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=3, vocab_size=100
    )
    adapted = get_peft_model(BertForSequenceClassification(config), LoraConfig(task_type="SEQ_CLS", lora_dropout=0.1))
    return MCDropout(adapted, 5).predict({"input_ids": torch.randint(1, 100, (100, 8))})


def gpytorch() -> Predictions:
    """A draw of a Gaussian process is a function of all points, so the pool is sampled at once."""
    import gpytorch as gp

    class Dirichlet(gp.models.ExactGP):
        def __init__(self, x, likelihood):
            super().__init__(x, likelihood.transformed_targets, likelihood)
            size = torch.Size([3])
            self.mean = gp.means.ConstantMean(batch_shape=size)
            self.kernel = gp.kernels.ScaleKernel(gp.kernels.RBFKernel(batch_shape=size), batch_shape=size)

        def forward(self, x):
            return gp.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gp.likelihoods.DirichletClassificationLikelihood(Y, learn_additional_noise=True)
    model = Dirichlet(X, likelihood).eval()
    with torch.no_grad():
        return Predictions.from_logits(model(POOL).sample(torch.Size([20])), axes="scn")


def lightning() -> Predictions:
    """A Lightning module is a network."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(network(), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 3))

        def forward(self, batch):
            return self.net(batch)

    return MCDropout(Module(), 5).predict(POOL)


def compiled() -> Predictions:
    """The network in a compiled module is used, not the compiled code."""
    return MCDropout(torch.compile(nn.Sequential(network(), nn.Dropout(0.5), nn.Linear(3, 3))), 5).predict(POOL)


def skorch() -> Predictions:
    """The module of a fitted skorch net is used."""
    from skorch import NeuralNetClassifier

    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, max_epochs=2, verbose=0).fit(X, Y)
    return MCDropout(net, 5).predict(POOL)


LIBRARIES = (
    laplace_torch, posteriors, ivon, bayesian_torch, torch_uncertainty, peft, gpytorch, lightning, compiled, skorch,
)  # fmt: skip


def main() -> None:
    """Run every library that is installed."""
    warnings.simplefilter("ignore")
    for run in LIBRARIES:
        try:
            predictions = run()
        except ImportError as error:
            print(f"{run.__name__}: not run, {error}")
            continue
        print(f"{run.__name__}: {predictions}, {select(predictions, 3, strategy='margin').indices.tolist()}")


if __name__ == "__main__":
    main()
