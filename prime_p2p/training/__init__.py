"""What happens inside a peer between two rounds: model, data, inner optimizer, evaluation and export."""
