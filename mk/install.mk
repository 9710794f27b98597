# Installing and packing. See mk/install.sh for what goes where.
PREFIX ?= /usr
DESTDIR ?=
