"""The program that trains and shows style codecs, at a size of seconds."""

import json
from functools import lru_cache

import numpy as np
import pytest
import torch
from PIL import Image

from medfed import codec
from medfed.core.errors import UserError
from medfed.networks.adain import load_codec
from medfed.networks.vgg import Decoder, VGGEncoder
from medfed.phantoms.synthesis.textures import random_texture
from medfed.style_codec.images import crop_rng, folder_pool, synthetic_pool
from medfed.style_codec.recipe import SMALL_RECIPE, Recipe
from medfed.style_codec.training import CodecTraining

TINY = "--size 16 --batch-size 2 --textures 4 --quiet --device cpu".split()


@lru_cache
def one_pool(size, n_textures):
    return synthetic_pool(size, 0, list, n_textures, cases=1)


@pytest.fixture(autouse=True)
def seeds_of_pools(monkeypatch):
    """Make each pool once, with seed 0, whatever the seed of the training; return the list of the seeds asked for."""
    seeds = []

    def make_once(size, seed, progress, textures):
        seeds.append(seed)
        return one_pool(size, textures)

    monkeypatch.setattr("medfed.style_codec.commands.synthetic_pool", make_once)
    return seeds


@pytest.fixture(autouse=True)
def figures_are_drawn_if_asked(request, monkeypatch):
    """A figure takes longer than the training; tests that look at it have the mark `figures`."""
    if "figures" not in request.keywords:
        monkeypatch.setattr("medfed.style_codec.commands._draw_figure", lambda *_: None)


@pytest.fixture
def pictures(tmp_path):
    """Three pictures of other sizes, one grey."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, (height, width) in enumerate(((40, 30), (24, 50), (33, 33))):
        pixels = np.round(255 * random_texture(1, number, 50)[:, :height, :width]).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels if number else pixels[..., 0]).save(folder / f"{number}.png")
    return folder


def train(out, *flags):
    return codec.main(["train", *TINY, "--out", str(out), *map(str, flags)])


@pytest.mark.figures
def test_a_resumed_training_gives_the_same_bits(tmp_path, pictures, monkeypatch):
    """Stopped at step 3 of 5, two steps after the warm-up; saved at 2 only, so that step 3 is made again."""
    flags = ("--content", pictures, "--warm-up", 1, "--save-every", 2, "--seed", 4)
    assert train(tmp_path / "whole", "--steps", 5, *flags) == 0
    advance, done = CodecTraining.train_step, []

    def pull_the_plug(training):
        if training.step == 3:
            raise KeyboardInterrupt
        done.append(training.step)
        return advance(training)

    with monkeypatch.context() as patch:
        patch.setattr(CodecTraining, "train_step", pull_the_plug)
        assert train(tmp_path / "stopped", "--steps", 5, *flags) == 130
    assert not (tmp_path / "stopped" / "codec.safetensors").exists() and done == [0, 1, 2]
    assert train(tmp_path / "stopped", "--steps", 5, *flags, "--resume") == 0
    for name in ("codec.safetensors", "codec.json", "samples.png"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_checkpoint_without_a_decoder_setting_can_be_resumed(tmp_path):
    assert train(tmp_path, "--steps", 1) == 0
    settings = tmp_path / "settings.json"
    kept = json.loads(settings.read_text())
    settings.write_text(json.dumps({name: value for name, value in kept.items() if name != "decoder"}))
    assert kept["decoder"] == "" and train(tmp_path, "--steps", 2, "--resume") == 0
    assert load_codec(tmp_path).facts["steps"] == 2


def test_more_steps_continue_a_finished_training(tmp_path):
    assert train(tmp_path / "long", "--steps", 3) == 0
    assert train(tmp_path / "short", "--steps", 2) == 0
    assert train(tmp_path / "short", "--steps", 3, "--resume") == 0
    ours, theirs = (load_codec(tmp_path / name).state_dict() for name in ("short", "long"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_finished_training_prints_facts_about_the_codec(tmp_path, capsys, seeds_of_pools):
    assert train(tmp_path, "--steps", 1, "--seed", 2) == 0 and set(seeds_of_pools) == {2}
    card = json.loads((tmp_path / "codec.json").read_text())
    assert card["command"].endswith("train --encoder small --textures 4 --steps 1 --batch-size 2 --size 16 --seed 2")
    assert card["data"]["content"].startswith("4 procedural textures, ")
    assert card["reconstruction_error"]["mean_absolute_error"] < 0.2 and card["architecture"] == "small"
    assert load_codec(tmp_path).facts["steps"] == 1
    assert "encoding and decoding changes" in capsys.readouterr().out


def test_a_vgg_file_is_trained_with_the_papers_numbers(tmp_path):
    """Only the decoder changes; the encoder is scaled once, and every kernel keeps its direction."""
    encoder = VGGEncoder("vgg16")
    names = ["conv0", *(f"conv{b}_{i}" for b, n in ((1, 2), (2, 2), (3, 3), (4, 1)) for i in range(1, n + 1))]
    weights = [name.removesuffix(".weight") for name in encoder.state_dict() if name.endswith("weight")]
    public = {
        f"{name}.{part}": encoder.state_dict()[f"{ours}.{part}"]
        for name, ours in zip(names, weights, strict=True)
        for part in ("weight", "bias")
    }
    torch.save(public, tmp_path / "vgg.pth")
    recipe = Recipe(str(tmp_path / "vgg.pth"))
    assert (recipe.steps, recipe.size, recipe.learning_rate, recipe.decay) == (160_000, 256, 1e-4, 5e-5)
    assert (recipe.content_weight, recipe.style_weight, recipe.pixel_weight, recipe.batch_size) == (1, 10, 0, 8)
    assert train(tmp_path / "out", "--encoder", tmp_path / "vgg.pth", "--steps", 2, "--warm-up", 1) == 0
    trained = load_codec(tmp_path / "out")
    for name, entry in encoder.state_dict().items():
        now = trained.encoder.state_dict()[name]
        assert torch.allclose(now / now.norm(), entry / entry.norm(), atol=1e-5), name
    assert torch.equal(trained.encoder.state_dict()["layers.0.weight"], encoder.state_dict()["layers.0.weight"])


def test_published_encoder_and_decoder_weights_become_a_codec_without_training(tmp_path):
    torch.manual_seed(3)
    encoder, decoder = VGGEncoder("vgg19"), Decoder("vgg19")
    for module, name in ((encoder, "vgg_normalised.pth"), (decoder, "decoder.pth")):
        torch.save({key.removeprefix("layers."): entry for key, entry in module.state_dict().items()}, tmp_path / name)
    pair = ["--encoder", tmp_path / "vgg_normalised.pth", "--decoder", tmp_path / "decoder.pth"]
    assert train(tmp_path / "out", *pair) == 0
    joined, image = load_codec(tmp_path / "out"), torch.rand(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(joined.decode(joined.encode(image), (24, 24)), decoder(encoder(image)[-1]).clamp(0, 1))
    assert joined.facts["steps"] == 0 and str(tmp_path / "decoder.pth") in joined.facts["command"]
    assert train(tmp_path / "further", *pair, "--steps", 1) == 0
    further = load_codec(tmp_path / "further")
    assert torch.equal(further.encoder.layers[0].weight, encoder.layers[0].weight)
    assert not torch.equal(further.decoder.layers[1].weight, decoder.layers[1].weight)


def test_the_losses_fall(monkeypatch):
    """From random weights: the small codec starts so well that there is little to see."""
    monkeypatch.setattr("medfed.style_codec.training.init_identity", lambda encoder, decoder: None)
    pool = one_pool(16, 4)
    training = CodecTraining(Recipe("small", steps=60, batch_size=2, size=16, learning_rate=3e-3), pool, pool)
    totals = [sum(training.train_step().values()) for _ in range(60)]
    assert sum(totals[-15:]) < 0.8 * sum(totals[:15])


def test_the_small_codec_needs_no_training_step_and_reconstructs_exactly(tmp_path):
    assert train(tmp_path, "--steps", 0) == 0
    card = json.loads((tmp_path / "codec.json").read_text())
    assert card["steps"] == 0 and card["reconstruction_error"]["mean_absolute_error"] < 1e-5


def test_the_pool_depends_on_its_seed_and_crops_on_their_name():
    first = one_pool(16, 4)
    again, other = (synthetic_pool(16, seed, list, n_textures=4, cases=1) for seed in (0, 1))
    assert first.digest() == again.digest() != other.digest()
    crops = first.batch(5, 16, crop_rng(0, "step", 3))
    assert crops.shape == (5, 3, 16, 16) and crops.min() >= 0 and crops.max() <= 1
    assert torch.equal(crops, again.batch(5, 16, crop_rng(0, "step", 3)))
    assert not torch.equal(crops, first.batch(5, 16, crop_rng(0, "step", 4)))


def test_textures_are_named_by_seed_and_number():
    pictures = [random_texture(0, number, 24) for number in range(12)]
    assert all(one.shape == (3, 24, 24) and one.min() >= 0 and one.max() <= 1 and one.std() > 0 for one in pictures)
    assert np.array_equal(pictures[5], random_texture(0, 5, 24)) and not np.array_equal(pictures[5], pictures[6])
    with pytest.raises(ValueError, match="at least 8"):
        random_texture(0, 0, 7)


@pytest.mark.figures
def test_show_draws_a_figure_and_prints_the_error_of_each_image(tmp_path, pictures, capsys):
    assert train(tmp_path / "codec", "--steps", 1) == 0
    images = sorted(map(str, pictures.iterdir()))
    out = tmp_path / "sheet.png"
    flags = ["--alpha", "0.5", "--out", str(out), "--device", "cpu"]
    assert codec.main(["show", str(tmp_path / "codec"), *images, *flags]) == 0
    output = capsys.readouterr().out
    assert output.count("mean absolute error") == 3 and Image.open(out).size[0] > 400


def test_images_that_do_not_fit_in_memory_are_refused_before_any_is_read(tmp_path, pictures, monkeypatch, capsys):
    """Crops of 16 pixels want pictures of 21 x 21, 1323 bytes each, 3969 for three."""
    monkeypatch.setattr("medfed.style_codec.images.MAX_POOL_BYTES", 3968)
    monkeypatch.setattr("medfed.style_codec.images.read_image_file", None)
    assert train(tmp_path / "out", "--steps", 0, "--content", pictures) == 2
    output = capsys.readouterr().err
    assert f"{pictures}: 3 images take" in output and "--size 16" in output and "give at most 2 images" in output
    assert output.count("\n") == 1
    monkeypatch.undo()
    monkeypatch.setattr("medfed.style_codec.images.MAX_POOL_BYTES", 3969)
    assert len(folder_pool([pictures], 16, list).images) == 3


def test_an_image_with_more_than_8_bits_is_refused_with_advice(tmp_path, capsys):
    """No key of a config says here what is white."""
    Image.fromarray(np.uint16([[0, 4095]])).save(tmp_path / "deep.png")
    assert codec.main(["show", "small", str(tmp_path / "deep.png"), "--out", str(tmp_path / "sheet.png")]) == 2
    output = capsys.readouterr().err
    assert "deep.png: the image has more than 8 bits, with values from 0 to 4095; expected 8 bits; save it as" in output
    assert "data." not in output


def test_mistakes_are_one_line(tmp_path, pictures, capsys):
    def says(sentence, *words):
        assert codec.main(list(map(str, words))) == 2
        assert sentence in capsys.readouterr().err

    out = tmp_path / "out"
    says("contains no training", "train", *TINY, "--out", out, "--resume")
    says("--steps at least 0", "train", *TINY, "--out", out, "--steps", -1)
    says("--size must be a multiple of 8", "train", *TINY, "--out", out, "--size", 20)
    says("contains no image", "train", *TINY, "--out", out, "--content", tmp_path / "nothing")
    says("is for VGG", "train", *TINY, "--out", out, "--decoder", tmp_path / "decoder.pth")
    says("nothing.pth: not found", "train", *TINY, "--out", out, "--encoder", tmp_path / "nothing.pth")
    assert train(out, "--steps", 1) == 0
    says("contains a codec's training; continue it with --resume", "train", *TINY, "--out", out, "--steps", 1)
    says("was started with a different seed", "train", *TINY, "--out", out, "--resume", "--seed", 9)
    says("--alpha must be from 0 to 1", "show", out, pictures / "0.png", "--alpha", 2)
    says("no codec found", "show", tmp_path / "none", pictures / "0.png")
    state = out / "checkpoint.state"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    says("its content does not match its checksum", "train", *TINY, "--out", out, "--resume", "--steps", 2)


def test_a_loss_that_is_not_finite_is_one_sentence():
    pool = one_pool(16, 4)
    training = CodecTraining(Recipe("small", steps=9, batch_size=2, size=16), pool, pool)
    next(training.codec.decoder.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="not finite at step 1; lower --learning-rate"):
        training.train_step()


def test_the_learning_rate_decays_as_in_the_paper_after_an_optional_warm_up():
    """1e-4 / (1 + 5e-5 * 20000) is 5e-5."""
    assert Recipe("x").learning_rate_at(0) == 1e-4
    assert Recipe("x").learning_rate_at(20_000) == pytest.approx(5e-5)
    assert Recipe("x", ramp=10, decay=0).learning_rate_at(4) == pytest.approx(5e-5)
    assert SMALL_RECIPE.learning_rate_at(0) == pytest.approx(SMALL_RECIPE.learning_rate / SMALL_RECIPE.ramp)
