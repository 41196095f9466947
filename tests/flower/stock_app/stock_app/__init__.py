"""An app that knows nothing of fedvarp but one import in its server."""
