"""Corpora, plan, prompts, scheduler, stream parser and transport."""
