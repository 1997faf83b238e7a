"""Inner steps on a device: a batch in parts is the same batch."""

from __future__ import annotations

import pytest
import torch
from peer_folders import small_recipe

from prime_p2p.training.batch import Batch
from prime_p2p.training.trainer import Trainer

TOKENS = torch.arange(4 * 17).mul(31).remainder(97).view(4, 17)
DOCUMENTS = torch.tensor([[0] * 17, [0] * 5 + [1] * 12, [0, 1, 2, 3] + [4] * 13, [7] * 17])


def trained(accumulation: int, batch: Batch, steps: int = 3) -> tuple[list[float], list[torch.Tensor]]:
    recipe = small_recipe("inner.optimizer=sgd", f"inner.accumulation={accumulation}", "inner.warmup_steps=0")
    trainer = Trainer(recipe, torch.device("cpu"))
    losses = [trainer.step(batch, recipe.inner, step) for step in range(steps)]
    return losses, [parameter.detach() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one text", "documents"])
@pytest.mark.parametrize("accumulation", [2, 4])
def test_a_batch_in_parts_leads_where_the_whole_one_leads_and_has_its_loss(
    accumulation: int, documents: torch.Tensor | None
) -> None:
    batch = Batch(TOKENS, documents)
    losses, parameters = trained(accumulation, batch)
    whole_losses, whole = trained(1, batch)
    assert losses == pytest.approx(whole_losses, rel=1e-5)
    for one, other in zip(parameters, whole, strict=True):
        torch.testing.assert_close(one, other)


def test_the_first_token_of_a_document_is_nothing_to_predict() -> None:
    assert Batch(TOKENS).targets == 4 * 16
    assert Batch(TOKENS, DOCUMENTS).targets == 16 + 15 + 12 + 16


def test_the_parts_of_a_batch_keep_their_documents_and_have_all_its_targets() -> None:
    parts = Batch(TOKENS, DOCUMENTS).split(2)
    assert [part.targets for part in parts] == [31, 28]
    assert torch.equal(torch.cat([part.tokens for part in parts]), TOKENS)
    assert [part.documents is None for part in Batch(TOKENS).split(1)] == [True] * 4
