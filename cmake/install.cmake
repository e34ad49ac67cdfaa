# install.cmake: what `cmake --install` puts where. Everything is relative to the prefix, the pkg-config file too.
include(GNUInstallDirs)

install(FILES include/edgeagent.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# From lib/pkgconfig up to the prefix: one level for each folder of the path.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
string(REGEX REPLACE "[^/]+" ".." EA_PC_UP ${pc_dir})
configure_file(cmake/edgeagent.pc.in library/edgeagent.pc @ONLY)

install(TARGETS edgeagent libedgeagent
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_BINARY_DIR}/library/edgeagent.pc DESTINATION ${pc_dir})
install(FILES ${PROJECT_BINARY_DIR}/man/edgeagent.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_BINARY_DIR}/man/edgeagent.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME edgeagent)
install(FILES ${PROJECT_BINARY_DIR}/man/edgeagent.zsh
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _edgeagent)
install(FILES ${PROJECT_BINARY_DIR}/man/edgeagent.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
