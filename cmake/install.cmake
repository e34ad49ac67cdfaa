# install.cmake: what `cmake --install` puts where.
include(GNUInstallDirs)
install(FILES include/edgeagent.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
