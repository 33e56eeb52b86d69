"""The planner service: endpoints scraped, targets with reasons, plans over HTTP."""
