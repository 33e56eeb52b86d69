"""What routing reads of bodies: model, prompt, session, usage."""
