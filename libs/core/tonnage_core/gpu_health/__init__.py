"""What a GPU measured, what that says about its health, and when it may be measured: documents, rules, guard."""
