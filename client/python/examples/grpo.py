"""usage: grpo.py [--trainer=0] [--actor=0] [--reference=0] [--plan=dp] [--steps=60] [--check]

Reinforcement learning (GRPO) by one program: an actor writes, a reward is given, a reference says how far the actor has gone, a
trainer learns, and its weights go to the actor. Each of them has devices of its own or shares them, as the command line says:

    DTORCH_DTENSOR_IN_SAME_DEVICE=4 python grpo.py --trainer=0,1 --plan=fsdp --actor=2 --reference=3

Nothing below waits for a value but the bar, so the roles work at the same time where nothing binds them. The model is that of
gpt.py; it learns to write odd and even digits in turn.

  --trainer, --actor, --reference   numbers of devices; the reward is given where the reference is
  --plan    how the trainer lies on several devices: dp or fsdp
  --check   compare the actor's weights with the trainer's, bit for bit, each time they were sent"""

import argparse
import copy

import gpt
import torch
from torch import nn
from torch.nn import functional as F

import dtorch
from dtorch import DeviceMesh, Replicate, Shard, plans

DIGITS, PROMPTS, GROUP, LENGTH = 10, 8, 8, 6  # each prompt is answered GROUP times, with LENGTH digits
PASSES, CLIP, DRIFT = 2, 0.2, 0.01


class Role:
    """A model on devices of its own, and the way there."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, plan: plans.Plan | None = None) -> None:
        self.mesh = mesh
        self.model = dtorch.distribute(copy.deepcopy(model), self.mesh, plan).eval()  # no dropout: scores are to be compared

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """A batch from wherever it is, in parts if there are several devices. Shapes: (batch, ...), the same."""
        parts = [Shard(0) if self.mesh.size() > 1 else Replicate()]
        if tensor.device.type == "cpu":
            return dtorch.distribute_tensor(tensor, self.mesh, parts)
        return dtorch.redistribute(tensor, self.mesh, parts)

    def scores(self, ids: torch.Tensor) -> torch.Tensor:
        """Logarithms of how likely the model was to write what it is given. Shapes: (batch, 1 + LENGTH) to (batch, LENGTH)."""
        chances = F.log_softmax(self.model(ids[:, :-1]), -1)
        return chances.gather(-1, ids[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def write(actor: Role, prompts: torch.Tensor) -> torch.Tensor:
    """Go on from each prompt. Shapes: (batch, 1) to (batch, 1 + LENGTH)."""
    ids = actor.take(prompts)
    for _ in range(LENGTH):
        ids = torch.cat([ids, torch.multinomial(actor.model(ids)[:, -1].softmax(-1), 1)], 1)
    return ids


def reward(ids: torch.Tensor) -> torch.Tensor:
    """The share of digits that are odd after an even one, or even after an odd one. Shapes: (batch, 1 + LENGTH) to (batch,)."""
    return ((ids[:, 1:] + ids[:, :-1]) % 2).float().mean(1)


def advantage(rewards: torch.Tensor) -> torch.Tensor:
    """How much better an answer is than the others to its prompt. Shapes: (PROMPTS * GROUP,) to (PROMPTS * GROUP, 1)."""
    groups = rewards.view(PROMPTS, GROUP)
    spread = groups.std(1, keepdim=True) + 1e-4
    return ((groups - groups.mean(1, keepdim=True)) / spread).view(-1, 1)


def loss_of(now: torch.Tensor, before: torch.Tensor, reference: torch.Tensor, better: torch.Tensor) -> torch.Tensor:
    """GRPO's: what was better is to become more likely, but not far from what wrote it, nor from the reference."""
    ratio = (now - before).exp()
    gain = torch.minimum(ratio * better, ratio.clamp(1 - CLIP, 1 + CLIP) * better)
    drift = (reference - now).exp() - (reference - now) - 1
    return (DRIFT * drift - gain).mean()


@torch.no_grad()
def send(trainer: Role, actor: Role) -> None:
    """The trainer's weights to the actor, from however they lie to however they lie there."""
    for new, old in zip(trainer.model.parameters(), actor.model.parameters()):
        old.copy_(dtorch.redistribute(new.detach(), actor.mesh, [Replicate()]))


def check(trainer: Role, actor: Role) -> None:
    """Raises: SystemExit (a weight of the actor is not the trainer's)."""
    there = dict(actor.model.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        if not torch.equal(parameter.detach().cpu(), there[name].detach().cpu()):
            raise SystemExit(f"{name} is not the same on the actor")


def train(trainer: Role, actor: Role, reference: Role, steps: int, is_checked: bool = False, say: bool = False) -> list[torch.Tensor]:
    """Some rounds; returns the mean reward of each, still on the device."""
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3, weight_decay=0)
    drawn, means = torch.Generator().manual_seed(1), []
    for step in range(1, steps + 1):
        prompts = torch.randint(DIGITS, (PROMPTS, 1), generator=drawn).repeat_interleave(GROUP, 0)
        ids = write(actor, prompts)
        with torch.no_grad():
            before = actor.scores(ids)
            looked_at = reference.take(ids)
            known, rewards = reference.scores(looked_at), reward(looked_at)
        given = [trainer.take(tensor) for tensor in (ids, before, known, advantage(rewards))]
        for _ in range(PASSES):
            optimizer.zero_grad()
            loss_of(trainer.scores(given[0]), *given[1:]).backward()
            nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            optimizer.step()
        send(trainer, actor)
        if is_checked:
            check(trainer, actor)
        means.append(rewards.mean())
        if say and (step % 10 == 0 or step == steps):  # item() waits for the devices; the rounds between do not
            done = 30 * step // steps
            print(f"\r[{'#' * done}{'.' * (30 - done)}] step {step}/{steps}  reward {means[-1].item():.3f}", end="", flush=True)
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2].partition("\n\n")[0])
    for role in ("trainer", "actor", "reference"):
        parser.add_argument(f"--{role}", default="0")
    parser.add_argument("--plan", default="dp", choices=("dp", "fsdp"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = gpt.Gpt(DIGITS)
    plan = plans.fsdp("dp") if options.plan == "fsdp" else plans.data_parallel("dp")
    meshes = [DeviceMesh("dtorch", [int(number) for number in devices.split(",")], mesh_dim_names=("dp",))
              for devices in (options.trainer, options.actor, options.reference)]  # all, before the session begins with as many devices
    trainer, actor, reference = Role(model, meshes[0], plan), Role(model, meshes[1]), Role(model, meshes[2])
    torch.manual_seed(2)
    train(trainer, actor, reference, options.steps, options.check, say=True)
    print("\nit writes:", " ".join(map(str, write(actor, torch.tensor([[3]]))[0].tolist())))
    if options.check:
        print("the actor had the trainer's weights after each step, bit for bit")


if __name__ == "__main__":
    main()
