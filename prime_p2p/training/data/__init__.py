"""What a peer reads: sources of text, what its tokens mean, who reads which part, and batches made ahead of time."""

from prime_p2p.recipe import STDLIB
from prime_p2p.training.data.corpus import Corpus
from prime_p2p.training.data.sampling import Sampler, validation_sequences
from prime_p2p.training.data.tokenizer import END_OF_FILE, Tokens

__all__ = ["END_OF_FILE", "STDLIB", "Corpus", "Sampler", "Tokens", "validation_sequences"]
