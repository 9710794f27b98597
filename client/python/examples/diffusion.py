"""usage: diffusion.py [--device=dtorch] [--steps=8] [--out=picture.pt]

A diffusers pipeline of the kind of Stable Diffusion 3 with a tiny random transformer: the loop, the scheduler and the decoder are
diffusers' own. It draws noise, as no weights are to be had here; what counts is that it runs, and equals the CPU. Needs diffusers
and transformers (mk/requirements-models.txt)."""

import argparse

import diffusers
import torch


def pipeline() -> diffusers.StableDiffusion3Pipeline:
    """A pipeline without text encoders: prompts come as embeddings."""
    torch.manual_seed(0)
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=1, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=64, out_channels=4)
    vae = diffusers.AutoencoderKL(
        sample_size=32, in_channels=3, out_channels=3, block_out_channels=(4, 8), layers_per_block=1, latent_channels=4,
        norm_num_groups=1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(), scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=vae.eval(), text_encoder=None,
        tokenizer=None, text_encoder_2=None, tokenizer_2=None, text_encoder_3=None, tokenizer_3=None)


def draw(device: str, steps: int, say: bool = False) -> torch.Tensor:
    """Draw a picture. Shapes: (1, 3, height, width), on the CPU."""
    pipe = pipeline().to(device)
    pipe.set_progress_bar_config(disable=not say)
    torch.manual_seed(1)
    words, pooled = torch.randn(1, 7, 32).to(device), torch.randn(1, 64).to(device)
    picture = pipe(prompt_embeds=words, pooled_prompt_embeds=pooled, negative_prompt_embeds=words * 0,
                   negative_pooled_prompt_embeds=pooled * 0, height=32, width=32, num_inference_steps=steps, output_type="pt",
                   generator=torch.Generator("cpu").manual_seed(2)).images
    return picture.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--device", default="dtorch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    picture = draw(options.device, options.steps, say=True)
    print(f"a picture {tuple(picture.shape)}, mean {picture.mean():.4f}, from {options.device}")
    if options.out:
        torch.save(picture, options.out)


if __name__ == "__main__":
    main()
