"""The compiled part of the model: flows, and steps where messages are only bytes on lossless paths."""
