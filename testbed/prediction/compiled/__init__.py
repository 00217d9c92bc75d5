"""The compiled part of the model: flows, and steps in which messages are only bytes on lossless paths."""
