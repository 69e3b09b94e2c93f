"""A vision-language model of a few thousand random weights, made on the spot and saved as the real ones are: a LLaVA
whose words are bytes. It sees, reads and speaks; it makes no sense."""

from __future__ import annotations

from pathlib import Path

__all__ = ["make_tiny_vlm"]

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tiny_vlm(folder: Path, *, seed: int = 0) -> Path:
    """Everything that a model folder holds: config, weights, tokenizer, image processor, chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<image>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    reader = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
    )
    eye = CLIPImageProcessorPil(
        size={"height": 16, "width": 16}, crop_size={"height": 16, "width": 16}, do_center_crop=False
    )
    processor = LlavaProcessor(
        image_processor=eye,
        tokenizer=reader,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TEMPLATE,
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**sizes, image_size=16, patch_size=8, projection_dim=16),
        text_config=LlamaConfig(
            **sizes,
            initializer_range=0.2,  # large enough for what it sees to matter
            vocab_size=len(words),
            num_key_value_heads=2,
            max_position_embeddings=8192,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        image_token_index=words["<image>"],
        image_seq_length=4,
    )
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(config)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
