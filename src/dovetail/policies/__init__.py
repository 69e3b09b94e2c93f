"""Policies: observations in, action chunks out. Only this folder, learn/ and labels/learned/ import torch."""
