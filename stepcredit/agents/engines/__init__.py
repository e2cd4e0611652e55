"""Engines: token ids in, sampled token ids and their log-probabilities out."""
