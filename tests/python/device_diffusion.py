"""usage: device_diffusion.py [PART OF A NAME]...

A diffusion transformer of diffusers (Stable Diffusion 3's class) and the decoder of its pictures, with tiny random weights, on
meshes against the CPU: data, tensor and context parallel. Values and gradients; the models are unmodified."""

import copy
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "4"

import torch  # noqa: E402  (the number of devices is read when the session begins)

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from dtorch import plans  # noqa: E402

# Of the largest value: float32, and sums of products are made in another order on each mesh.
TOLERANCE = 2e-5
HEADS, WIDTH = 4, 8


def transformer() -> Any:
    """Raises: Skip (diffusers is not there)."""
    if importlib.util.find_spec("diffusers") is None:
        raise devicetest.Skip("diffusers is not installed")
    import diffusers
    torch.manual_seed(0)
    return diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=WIDTH, num_attention_heads=HEADS,
        joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=64, out_channels=4, dual_attention_layers=(0,),
        qk_norm="rms_norm")


def decoder() -> Any:
    if importlib.util.find_spec("diffusers") is None:
        raise devicetest.Skip("diffusers is not installed")
    import diffusers
    torch.manual_seed(0)
    return diffusers.AutoencoderKL(
        sample_size=32, in_channels=3, out_channels=3, block_out_channels=(8, 16), layers_per_block=1, latent_channels=4,
        norm_num_groups=4, use_quant_conv=False, use_post_quant_conv=True,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def denoise(model: Any, put: Callable[[torch.Tensor, int], torch.Tensor], rows: int) -> list[torch.Tensor]:
    """What the transformer makes of noise and words, and gradients. put: places a tensor, whose given dimension is its sequence."""
    out = model(hidden_states=put(draw(rows, 4, 16, 16), 2), encoder_hidden_states=put(draw(rows, 7, 32), 1),
                pooled_projections=put(draw(rows, 64), -1), timestep=put(torch.full((rows,), 3.0), -1), return_dict=False)[0]
    out.square().mean().backward()
    return [out.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def decode(model: Any, put: Callable[[torch.Tensor, int], torch.Tensor], rows: int) -> list[torch.Tensor]:
    out = model.decode(put(draw(rows, 4, 16, 16), 2), return_dict=False)[0]
    out.square().mean().backward()
    return [out.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def equals_one_device(make: Callable[[], Any], run: Callable[..., list[torch.Tensor]], mesh: dtorch.DeviceMesh, plan: plans.Plan,
                      rows: int, cut: str) -> None:
    """cut: what dimension of the mesh takes rows ("dp") and sequences ("cp") apart."""
    model = make()
    want = run(copy.deepcopy(model), lambda tensor, _: tensor, rows)

    def put(tensor: torch.Tensor, sequence: int) -> torch.Tensor:
        at = [dtorch.Shard(0) if name == "dp" else dtorch.Shard(sequence) if name == "cp" and sequence >= 0 else dtorch.Replicate()
              for name in mesh.mesh_dim_names or ()]
        return dtorch.distribute_tensor(tensor, mesh, at)

    got = run(dtorch.distribute(model, mesh, plan), put, rows)
    assert len(want) == len(got)
    far = max(float((a - b.cpu()).abs().max() / a.abs().max().clamp(min=1e-3)) for a, b in zip(want, got))
    print(f"{run.__name__} on {cut}, {rows} rows: {far:.1e}")
    assert far <= TOLERANCE, f"{far:.1e} off"


def mesh_of(*dims: str) -> dtorch.DeviceMesh:
    return dtorch.init_device_mesh("cuda", (2,) * len(dims), mesh_dim_names=dims)


def plan_of(dims: tuple[str, ...], tensor: plans.Plan) -> plans.Plan:
    made = plans.Plan({})
    for dim in dims:
        made += tensor if dim == "tp" else plans.Plan({dim: ()})
    return made


def main() -> int:
    suite = devicetest.Suite("device diffusion", devicetest.arguments())
    convolutions = plans.Plan({"tp": [plans.Rule(r"\bconv\w*\.(weight|bias)$", dtorch.Shard(0)),
                                      plans.Rule(r"\bto_(q|k|v)\.(weight|bias)$", dtorch.Shard(0)),
                                      plans.Rule(r"\bto_out\.0\.weight$", dtorch.Shard(1))]})
    for dims in (("dp",), ("tp",), ("cp",), ("dp", "tp"), ("cp", "tp"), ("dp", "cp")):
        for rows in (1, 2, 3) if len(dims) == 1 else (2,):
            suite.check(f"sd3 on {' x '.join(dims)}, {rows} rows", lambda d=dims, r=rows: equals_one_device(
                transformer, denoise, mesh_of(*d), plan_of(d, plans.sd3_tensor_parallel("tp", head_width=WIDTH)), r, " x ".join(d)))
            suite.check(f"decoder on {' x '.join(dims)}, {rows} rows", lambda d=dims, r=rows: equals_one_device(
                decoder, decode, mesh_of(*d), plan_of(d, convolutions), r, " x ".join(d)))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
