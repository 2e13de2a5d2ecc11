"""Names, arguments and attributes of a program's text: does what is written exist?"""
