"""Models as users write them for policy 'vla': from one that only acts to one that PPO trains."""

import math

import torch
from tensordict import TensorDict
from torch import nn


class Acts(nn.Module):
    """Only `forward`, without randomness."""

    def __init__(self, action_dim, proprio_dim, horizon=1, gain=1.0):
        super().__init__()
        self.horizon, self.gain = horizon, gain
        self.mean = nn.Linear(proprio_dim, horizon * action_dim)

    def forward(self, observations):
        state = torch.cat([values.flatten(1) for values in observations["proprio"].values()], dim=1)
        return self.gain * torch.tanh(self.mean(state)).unflatten(1, (self.horizon, -1))


class Imitates(Acts):
    """With a loss of its own, for chunks."""

    def imitation_loss(self, observations, actions, mask):
        error = (self.forward(observations) - actions).square().mean(-1)
        return (error * mask).sum() / mask.sum()


class ActsAndValues(nn.Module):
    """EmbodiChain's documented methods, with tensors: a Gaussian with a value."""

    def __init__(self, action_dim, proprio_dim, hidden=32):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(proprio_dim, hidden), nn.Tanh(), nn.Linear(hidden, action_dim))
        self.critic = nn.Sequential(nn.Linear(proprio_dim, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.full((action_dim,), math.log(0.5)))

    def _state(self, observations):
        return torch.cat(list(observations["proprio"].values()), dim=1)

    def _gaussian(self, observations):
        return torch.distributions.Normal(self.actor(self._state(observations)), self.log_std.exp())

    def forward(self, observations, deterministic=False):
        gaussian = self._gaussian(observations)
        return gaussian.mean if deterministic else gaussian.sample()

    def get_value(self, observations):
        return self.critic(self._state(observations))

    def evaluate_actions(self, observations, actions):
        gaussian = self._gaussian(observations)
        return gaussian.log_prob(actions).sum(-1), gaussian.entropy().sum(-1)


class WithTensorDicts(ActsAndValues):
    """The same with TensorDicts in and out, as EmbodiChain's own policies."""

    def forward(self, tensordict, deterministic=False):
        gaussian = self._gaussian(tensordict)
        tensordict["action"] = gaussian.mean if deterministic else gaussian.sample()
        return self.evaluate_actions(tensordict)

    def get_value(self, tensordict):
        tensordict["value"] = self.critic(self._state(tensordict))
        return tensordict

    def evaluate_actions(self, tensordict):
        gaussian = self._gaussian(tensordict)
        tensordict["sample_log_prob"] = gaussian.log_prob(tensordict["action"]).sum(-1, keepdim=True)
        tensordict["entropy"] = gaussian.entropy().sum(-1, keepdim=True)
        return self.get_value(tensordict)


class Echo(nn.Module):
    """Keeps its last observations, to look at them."""

    def __init__(self, action_dim, horizon):
        super().__init__()
        self.shape, self.seen = (horizon, action_dim), None
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, observations):
        self.seen = observations
        return TensorDict({"action_chunk": self.bias.expand(len(observations), *self.shape)}, [len(observations)])


class WithoutValue(ActsAndValues):
    get_value = None


class ChunksWithValues(nn.Module):
    """A Gaussian over chunks with a value: the log-density of each action."""

    def __init__(self, action_dim, proprio_dim, horizon, num_more=0, hidden=32):
        super().__init__()
        num, self.shape = proprio_dim + num_more, (horizon, action_dim)
        self.actor = nn.Sequential(nn.Linear(num, hidden), nn.Tanh(), nn.Linear(hidden, horizon * action_dim))
        self.critic = nn.Sequential(nn.Linear(num, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.full((action_dim,), math.log(0.5)))

    def _state(self, observations):
        return torch.cat([values.flatten(1) for values in observations["proprio"].values()], dim=1)

    def _gaussian(self, observations):
        mean = self.actor(self._state(observations)).unflatten(1, self.shape)
        return torch.distributions.Normal(mean, self.log_std.exp())

    def forward(self, observations, deterministic=False):
        gaussian = self._gaussian(observations)
        return gaussian.mean if deterministic else gaussian.sample()

    def get_value(self, observations):
        return self.critic(self._state(observations))

    def evaluate_actions(self, observations, actions):
        gaussian = self._gaussian(observations)
        return gaussian.log_prob(actions).sum(-1), gaussian.entropy().sum(-1)


class DensityOfChunks(ChunksWithValues):
    """The same with one log-density for each chunk."""

    def evaluate_actions(self, observations, actions):
        log_prob, entropy = super().evaluate_actions(observations, actions)
        return log_prob.sum(1), entropy.sum(1)


class DensityOfFirstActions(ChunksWithValues):
    """Acts in chunks, but judges single actions only."""

    def evaluate_actions(self, observations, actions):
        gaussian = self._gaussian(observations)
        first = torch.distributions.Normal(gaussian.mean[:, 0], gaussian.stddev[:, 0])
        return first.log_prob(actions).sum(-1), first.entropy().sum(-1)


class SeesReadsAndRemembers(ChunksWithValues):
    """Chunks from images, a prompt and the history of the state."""

    def __init__(self, action_dim, proprio_dim, horizon, num_cameras):
        super().__init__(action_dim, proprio_dim, horizon, num_more=3 * num_cameras + 1)

    def _state(self, observations):
        images = [image.float().mean((1, 2)) / 255.0 for image in observations["rgb"].values()]
        texts = torch.tensor([[len(text) / 100.0] for text in observations["language"]])
        return torch.cat([super()._state(observations), *images, texts], dim=1)


class DetachedValue(ActsAndValues):
    @torch.no_grad()
    def get_value(self, observations):
        return super().get_value(observations)


class Constant(nn.Module):
    """The same action always, with a mean squared error."""

    def __init__(self, action):
        super().__init__()
        self.action = nn.Parameter(torch.tensor(action))

    def forward(self, observations):
        return self.action.expand(len(observations), -1)

    def imitation_loss(self, observations, actions, mask):
        return (self.action - actions).square().mean()


class WrongShape(Acts):
    def forward(self, observations):
        return torch.zeros(len(observations), 3)


class NoAction(Acts):
    def forward(self, observations):
        return TensorDict({}, [len(observations)])


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = 1 / 0

    def forward(self, observations): ...


class Half(Acts):
    def __init__(self, action_dim, proprio_dim):
        super().__init__(action_dim, proprio_dim)
        self.to(torch.bfloat16)
