"""What the documentation's site is built with, beside the pages in docs/.

api_pages            one page for each room of the package, from its list of public names
settings_page        the settings reference, from the classes that declare the settings
docstrings           docstrings as the site shows them
tutorial             the notebook of the tutorial's page, and its outputs in the page
hooks                where mkdocs meets the above
checks               that links lead somewhere, and nothing is loaded from elsewhere
"""
